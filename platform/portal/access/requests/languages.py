"""The language of a page: the person's choice in *Profile*, then what the browser asks for, then English."""

from __future__ import annotations

from contextlib import suppress

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponseBase
from django.middleware import locale
from django.utils import translation
from django.utils.translation import trans_real

from portal.access.requests.paths import is_inference
from tenants.models import User


class LocaleMiddleware(locale.LocaleMiddleware):
    """Django's, which also knows a person's own choice. Texts of the APIs are English: programs read them."""

    def process_request(self, request: HttpRequest) -> None:
        """Switch to the language of this request."""
        if _is_api(request.path):
            translation.activate(settings.LANGUAGE_CODE)
            return
        language = language_of(request.user, request.headers.get("Accept-Language", ""))
        translation.activate(language)
        request.LANGUAGE_CODE = language

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Say the language in the headers of a page."""
        return response if _is_api(request.path) else super().process_response(request, response)


def language_of(user: User | AnonymousUser, accepted: str) -> str:
    """Return the language that a person chose, or the first that the browser's ``Accept-Language`` names."""
    if isinstance(user, User) and user.language in dict(settings.LANGUAGES):
        return user.language
    for code, _ in trans_real.parse_accept_lang_header(accepted):
        with suppress(LookupError):
            return trans_real.get_supported_language_variant(code)
    return settings.LANGUAGE_CODE


def _is_api(path: str) -> bool:
    return is_inference(path) or path.startswith(("/api/", "/v1/", "/metrics", "/health"))
