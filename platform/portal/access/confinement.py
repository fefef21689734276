"""What a member who is confined to projects reads: row-level security leaves out every other project's rows.

Pages and API say for whom a request is (:func:`begin`); every read of a tenant then obeys it, until the request ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from portal.access.principal import TENANT_WIDE, Principal
from portal.errors import NotPermitted
from tenants.database import rls
from tenants.models import Tenant

Get = Callable[[HttpRequest], Any]


def begin(principal: Principal) -> None:
    """Let the rest of this request read what the principal may."""
    rls.confine(principal.confined)


def require_whole(principal: Principal, tenant: Tenant, what: str) -> None:
    """Raise NotPermitted unless this principal sees the whole tenant. ``what`` is of all of it: “A month”."""
    require_unconfined(principal, tenant, what)
    if principal.project is not None:
        raise NotPermitted(f"{what} is of the whole tenant: use a key with the scope {TENANT_WIDE!r}.")


def require_unconfined(principal: Principal, tenant: Tenant, what: str) -> None:
    """Raise NotPermitted for a member who is confined to projects. A key of one project has its own: “A statement”."""
    if principal.is_confined_in(tenant.id):
        raise NotPermitted(
            f"{what} is of the whole tenant, and your membership is confined to some of its projects. An owner or "
            "admin of the tenant can change that on its page Members."
        )


@sync_and_async_middleware
def end_with_request(get_response: Get) -> Get:
    """End with each request what :func:`begin` began in it."""
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            responding: Awaitable[HttpResponseBase] = get_response(request)
            with rls.confined_to({}):
                return await responding

        return markcoroutinefunction(asynchronous)

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        with rls.confined_to({}):
            response: HttpResponseBase = get_response(request)
            return response

    return synchronous
