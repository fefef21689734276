"""What the people who handle a tenant's bills read on each of its pages while invoices are not paid."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from django.db.models import Exists, OuterRef

from billing.dunning import cases
from billing.models import DunningStep
from portal.access.principal import Principal
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant

#: Numbers that it names.
NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """``is_refused``: requests are refused. ``suspends_on``: when they will be; None: that is not planned."""

    numbers: tuple[str, ...]
    more: int
    is_refused: bool
    suspends_on: date | None


def of(principal: Principal, tenant: Tenant) -> Banner | None:
    """Return the banner; None while nothing was done about an invoice, and for others. Operators have a page of it."""
    if principal.is_operator or not principal.handles_bills_of(tenant.id):
        return None
    with as_tenant(TenantId(tenant.id)):
        reminded = Exists(DunningStep.objects.filter(invoice=OuterRef("invoice")))
        found = list(cases.rows(tenant).filter(reminded).order_by("starts_on", "id"))
    if not found:
        return None
    planned = [each.next_on for each in found if each.next_kind == DunningStep.Kind.SUSPENSION and each.next_on]
    return Banner(
        numbers=tuple(each.invoice.number for each in found[:NAMED]),
        more=max(0, len(found) - NAMED),
        is_refused=tenant.payment_overdue_since is not None,
        suspends_on=min(planned, default=None),
    )
