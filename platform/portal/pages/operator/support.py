"""Start and end the support view of a tenant."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext_noop as _

from portal.access import support_view
from portal.access.principal import Principal, tenant_for
from portal.formats.query_params import posted
from portal.pages.base import form_action, operator_page, page
from tenants import error_text
from tenants.errors import TenantError


@form_action("portal:tenant")
@operator_page
def start(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """See the portal as the tenant does, for an hour."""
    tenant = tenant_for(principal, slug)
    reason = posted(request, "reason")
    if not reason:
        messages.error(request, _("Say why: the tenant reads it in its audit log."))
        return redirect("portal:tenant", slug=tenant.slug)
    try:
        support_view.start(request, principal, tenant, reason)
    except TenantError as error:
        messages.error(request, error_text.words(error))
    return redirect("portal:tenant", slug=tenant.slug)


@form_action("portal:overview")
@page
def end(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """See the portal as an operator again."""
    support_view.end(request, principal)
    if principal.support is None:
        return redirect("portal:overview")
    return redirect("portal:tenant", slug=principal.support.tenant_slug)
