"""The language of a page: the person's choice in *Profile*, then what the browser asks for, then English."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponseBase
from django.middleware import locale
from django.utils import translation

from portal.access.paths import is_inference
from tenants.models import User


class LocaleMiddleware(locale.LocaleMiddleware):
    """Django's, which also knows a person's own choice. Texts of the APIs are English: programs read them."""

    def process_request(self, request: HttpRequest) -> None:
        """Switch to the language of this request."""
        if _is_api(request.path):
            translation.activate(settings.LANGUAGE_CODE)
            return
        super().process_request(request)
        user: User | AnonymousUser = request.user
        chosen = user.language if isinstance(user, User) else ""
        if chosen in dict(settings.LANGUAGES):
            translation.activate(chosen)
            request.LANGUAGE_CODE = translation.get_language()

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Say the language in the headers of a page."""
        return response if _is_api(request.path) else super().process_response(request, response)


def _is_api(path: str) -> bool:
    return is_inference(path) or path.startswith(("/api/", "/v1/", "/metrics", "/health"))
