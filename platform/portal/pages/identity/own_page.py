"""Show django-allauth's views in the portal's frame."""

from __future__ import annotations

from functools import wraps

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse

from portal.access.principal import Principal
from portal.pages.base import View, frame, page


def own_page(view: View, active: str = "account") -> View:
    """Return the view as a page of the signed-in person, guarded as every page is."""

    @page
    @wraps(view)
    def framed(request: HttpRequest, principal: Principal, *args: object, **kwargs: object) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        if isinstance(response, TemplateResponse):
            shown = frame(principal, active=active) | {"is_mail_sent": settings.EMAIL_IS_SENT}
            response.context_data = shown | (response.context_data or {})
        return response

    return framed


def entrance(view: View) -> View:
    """Return the view as a page for those who are not signed in."""

    @wraps(view)
    def shown(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        if isinstance(response, TemplateResponse):
            response.context_data = {"is_mail_sent": settings.EMAIL_IS_SENT} | (response.context_data or {})
        return response

    return shown
