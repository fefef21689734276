"""The security headers of every response of the portal: pages, the API, errors and redirects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from portal.access.requests.paths import is_inference

#: Of a page: its own scripts, styles, images and live updates, nothing from elsewhere.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'{live}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: Of anything else, which a browser has no reason to render.
OTHER_POLICY = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'"

Get = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def add(get_response: Get) -> Get:
    """Add the headers to each response but the inference API's, which has its own."""
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            responding: Awaitable[HttpResponseBase] = get_response(request)
            return _with_headers(request, await responding)

        return markcoroutinefunction(asynchronous)

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        return _with_headers(request, get_response(request))

    return synchronous


def _with_headers(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Nothing is cached, so that the browser's next user cannot go back to it."""
    if is_inference(request.path):
        return response
    is_page = response.headers.get("Content-Type", "").startswith("text/html")
    # an invoice has a stricter one of its own, with the styles that are in it
    response.headers.setdefault("Content-Security-Policy", page_policy(request) if is_page else OTHER_POLICY)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["Referrer-Policy"] = "same-origin"
    return response


def page_policy(request: HttpRequest, *, calls: str = "") -> str:
    """Return a page's policy. For some browsers 'self' does not include the live updates, so their host is named.

    ``calls`` is a further origin that the page's scripts may call.
    """
    calls = f" {calls}" if calls else ""
    try:
        host = request.get_host()
    except DisallowedHost:  # the error page, which has no live updates
        return PAGE_POLICY.format(live=calls)
    return PAGE_POLICY.format(live=f" {'wss' if request.is_secure() else 'ws'}://{host}{calls}")
