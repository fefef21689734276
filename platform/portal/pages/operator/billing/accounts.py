"""The credit of every tenant, and what waits for a second person."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from billing import second_person
from billing.accounts import balance, credits
from billing.accounts.balance import Balance
from billing.models import CreditRequest
from portal.access.principal import Principal, tenants_of
from portal.pages.base import operator_page, show
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDisplay:
    """A change that waits for a second person, and its tenant."""

    request: CreditRequest
    tenant: Tenant


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List the tenants with their credit, and what waits for approval."""
    tenants = {each.id: each for each in tenants_of(principal).exclude(slug=PLATFORM_SLUG)}
    has = balance.of_all(tenants)
    rows: list[tuple[Tenant, Balance]] = [(each, has[each.id]) for each in tenants.values()]
    context = {
        "rows": [row for row in rows if row[0].state != Tenant.State.ARCHIVED or row[1].total_pico],
        "pending": [
            PendingDisplay(request=each, tenant=tenants[each.tenant_id])
            for each in credits.pending()
            if each.tenant_id in tenants
        ],
        "me": second_person.person(principal.actor),
    }
    return show(request, principal, "portal/all_billing.html", context, active="all-billing")
