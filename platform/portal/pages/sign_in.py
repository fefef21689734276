"""Sign-in and sign-out: Django's own form and views; wrong passwords are throttled."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from portal.access import login_throttle
from portal.access.addresses import client_address
from portal.errors import TooManyAttempts
from portal.pages.base import form_action
from tenants.audit import Actor
from tenants.keys import playground
from tenants.models import User

#: The code of the form's error after too many wrong passwords.
TOO_MANY = "too_many"


class SignInForm(AuthenticationForm):
    """Name and password, throttled by ``portal.access.login_throttle``."""

    #: Seconds until the next attempt is allowed, after too many wrong passwords.
    retry_after_seconds = 0

    def clean(self) -> dict[str, Any]:
        """Check the password. The error is the same for an unknown name and a wrong password."""
        name = self.cleaned_data.get("username")
        if not name or not self.cleaned_data.get("password"):  # no password is checked
            return super().clean()
        assert self.request is not None
        address = client_address(self.request)
        try:
            with login_throttle.attempt(name, address):
                return super().clean()
        except TooManyAttempts as error:
            self.retry_after_seconds = error.retry_after_seconds
            minutes = -(-error.retry_after_seconds // 60)
            raise ValidationError(f"Too many wrong passwords. Try again in {minutes} min.", TOO_MANY) from None


class SignInView(LoginView):
    """The sign-in page."""

    template_name = "portal/sign_in.html"
    form_class = SignInForm
    redirect_authenticated_user = True

    def form_invalid(self, form: SignInForm) -> HttpResponse:  # type: ignore[override]
        """Show the form with its errors; 429 after too many wrong passwords."""
        response = super().form_invalid(form)
        if form.has_error(NON_FIELD_ERRORS, TOO_MANY):
            response.status_code = 429
            response.headers["Retry-After"] = str(form.retry_after_seconds)
        return response


@form_action("portal:overview")
def sign_out(request: HttpRequest) -> HttpResponseBase:
    """End the session, and revoke the person's keys of the playground."""
    user = request.user
    if isinstance(user, User):
        playground.revoke_of(Actor(kind="user", name=user.get_username(), user=user), user)
    return LogoutView.as_view(next_page="portal:login")(request)
