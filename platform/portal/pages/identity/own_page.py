"""Show django-allauth's views in the portal's frame."""

from __future__ import annotations

from functools import wraps
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse

from portal.access.identity import mfa
from portal.access.principal import Principal
from portal.pages.base import View, frame, page
from tenants.errors import NotFound
from tenants.identity import second_factor
from tenants.models import User


def own_page(view: View) -> View:
    """Return the view as a page of the signed-in person, guarded as every page is."""

    @wraps(view)
    def framed(request: HttpRequest, principal: Principal, *args: object, **kwargs: object) -> HttpResponseBase:
        return _framed(request, view(request, *args, **kwargs), principal, {"is_mail_sent": settings.EMAIL_IS_SENT})

    return page(framed, needs_factor=False)


def password_page(view: View) -> View:
    """Return the view as such a page of those who have a password; for others it is not found."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        if not (isinstance(request.user, User) and request.user.has_usable_password()):
            raise NotFound("page", request.path)
        return view(request, *args, **kwargs)

    return own_page(guarded)


def factor_page(view: View) -> View:
    """Return the view as such a page about second factors. Those who come from a provider have none here."""

    @wraps(view)
    def framed(request: HttpRequest, principal: Principal, *args: object, **kwargs: object) -> HttpResponseBase:
        user = principal.user
        if user is None or hasattr(user, "provider_member"):
            raise NotFound("page", request.path)
        return _framed(request, view(request, *args, **kwargs), principal, _about_factors(user))

    return page(framed, needs_factor=False)


def entrance(view: View) -> View:
    """Return the view as a page for those who are not signed in."""

    @wraps(view)
    def shown(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        if isinstance(response, TemplateResponse):
            response.context_data = {"is_mail_sent": settings.EMAIL_IS_SENT} | (response.context_data or {})
        return response

    return shown


def _about_factors(user: User) -> dict[str, Any]:
    return {
        "is_factor_missing": mfa.is_missing(user),
        "is_required_of_operators": user.is_staff and second_factor.is_required(None),
    }


def _framed(
    request: HttpRequest, response: HttpResponseBase, principal: Principal, more: dict[str, Any]
) -> HttpResponseBase:
    if isinstance(response, TemplateResponse):
        response.context_data = frame(request, principal, active="account") | more | (response.context_data or {})
    return response
