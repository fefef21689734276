"""A tenant's billing account. Operators change it; owners and billing members of the tenant read it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.http import require_http_methods

from billing.accounts import account
from portal.access.principal import Principal, tenant_for
from portal.forms.account import AccountForm
from portal.pages.base import page, show, submit
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import Tenant


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Show the account; let operators change it."""
    tenant = tenant_for(principal, slug)
    if not principal.handles_bills_of(tenant.id):
        raise NotFound("page", request.path)
    with as_tenant(TenantId(tenant.id)):
        found = account.of(tenant)
    if request.method == "GET":
        return _show(request, principal, tenant, found, AccountForm(account=found))
    if not principal.is_operator:
        raise NotFound("page", request.path)
    form = AccountForm(request.POST, account=found)

    def change() -> str:
        account.change(principal.actor, tenant, **form.changes())
        return "Saved. Invoices from now on have these details."

    done = submit(request, form, change, back="portal:billing", slug=slug)
    return done if done is not None else _show(request, principal, tenant, found, form)


def _show(
    request: HttpRequest, principal: Principal, tenant: Tenant, found: account.Account, form: AccountForm
) -> HttpResponse:
    context = {"account": found, "details": found.details, "form": form}
    status = 400 if form.errors else 200
    return show(request, principal, "portal/billing.html", context, active="billing", tenant=tenant, status=status)
