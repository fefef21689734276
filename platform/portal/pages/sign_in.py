"""Sign-in: Django's own form and view, with wrong passwords throttled."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponseBase

from portal.access import login_throttle
from portal.access.addresses import client_address
from portal.errors import TooManyAttempts
from portal.pages.base import with_page_headers


class SignInForm(AuthenticationForm):
    """Name and password, throttled by ``portal.access.login_throttle``."""

    def clean(self) -> dict[str, Any]:
        """Check the password. The error is the same for an unknown name and a wrong password."""
        name = self.cleaned_data.get("username") or ""
        assert self.request is not None
        address = client_address(self.request)
        try:
            login_throttle.check(name, address)
        except TooManyAttempts as error:
            minutes = -(-error.retry_after_seconds // 60)
            raise ValidationError(f"Too many wrong passwords. Try again in {minutes} min.", "too_many") from None
        try:
            cleaned = super().clean()
        except ValidationError:
            login_throttle.count_failure(name, address)
            raise
        login_throttle.reset(name, address)
        return cleaned


class SignInView(LoginView):
    """The sign-in page."""

    template_name = "portal/sign_in.html"
    form_class = SignInForm
    redirect_authenticated_user = True

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Respond with the headers that every page has."""
        return with_page_headers(super().dispatch(request, *args, **kwargs))
