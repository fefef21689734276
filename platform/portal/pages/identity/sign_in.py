"""Sign-in with name and password, by django-allauth, with wrong passwords throttled."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import LoginForm
from allauth.account.views import LoginView, LogoutView
from django.conf import settings
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from portal.access.requests import login_throttle
from portal.access.requests.addresses import client_address
from portal.errors import TooManyAttempts
from portal.pages.base import form_action

#: The code of the form's error after too many wrong passwords.
TOO_MANY = "too_many"


class SignInForm(LoginForm):  # type: ignore[misc]  # allauth has no types
    """Name and password, throttled by ``portal.access.requests.login_throttle``."""

    #: Seconds until the next attempt is allowed, after too many wrong passwords.
    retry_after_seconds = 0

    def add_prefix(self, field_name: str) -> str:
        """Return the field's name on the page. allauth calls the name ``login``."""
        return "username" if field_name == "login" else str(super().add_prefix(field_name))

    def clean(self) -> dict[str, Any] | None:
        """Check the password. The error is the same for an unknown name and a wrong password."""
        cleaned: dict[str, Any] | None
        if self.errors:  # no password is checked
            cleaned = super().clean()
            return cleaned
        try:
            with login_throttle.attempt(self.cleaned_data["login"], client_address(self.request)):
                cleaned = super().clean()
                return cleaned
        except TooManyAttempts as error:
            self.retry_after_seconds = error.retry_after_seconds
            minutes = -(-error.retry_after_seconds // 60)
            raise ValidationError(f"Too many wrong passwords. Try again in {minutes} min.", TOO_MANY) from None


class SignInView(LoginView):  # type: ignore[misc]  # allauth has no types
    """The sign-in page."""

    form_class = SignInForm

    def form_invalid(self, form: SignInForm) -> HttpResponse:
        """Show the form with its errors; 429 after too many wrong passwords."""
        response: HttpResponse = super().form_invalid(form)
        if form.has_error(NON_FIELD_ERRORS, TOO_MANY):
            response.status_code = 429
            response.headers["Retry-After"] = str(form.retry_after_seconds)
        return response

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        """Return what the template shows."""
        context: dict[str, Any] = super().get_context_data(**more)
        return context | {"is_mail_sent": settings.EMAIL_IS_SENT}


@form_action("portal:overview")
def sign_out(request: HttpRequest) -> HttpResponseBase:
    """End the session, or a sign-in that waits for its second step."""
    response: HttpResponseBase = LogoutView.as_view()(request)
    return response
