"""The balance of a prepaid tenant as a hard budget without periods.

Its limit is what the ledger has beside usage: credit (prepaid and promotions), less what the tenant owes for anything
else than usage, such as terms and tax, plus what was paid of its months. What is spent is all usage that was ever
charged. So

    left = limit - usage - holds = credit - what is unpaid - holds

and gateways check it as they check budgets, in the same script, with the same holds and the same reconciler. Closing a
month takes from the credit what it pays, so it changes nothing here. Each time that a tenant becomes prepaid its
counter has a new id, so that no gateway finds an old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from django.db.models import Sum

from billing.models import LedgerAccount, LedgerEntry
from tenants.models import Tenant

#: Kind of the postings of usage (``billing.ledger.ledger``).
_USAGE = "usage"
_OF_THE_TENANT = (
    LedgerAccount.Kind.RECEIVABLE.value,
    LedgerAccount.Kind.PREPAID.value,
    LedgerAccount.Kind.PROMOTION.value,
)


def tenants(tenant_ids: Iterable[UUID] | None = None) -> list[Tenant]:
    """Return the prepaid tenants, of these or of all, in order of id."""
    rows = Tenant.objects.exclude(prepaid_counter_id=None).order_by("id")
    return list(rows if tenant_ids is None else rows.filter(id__in=set(tenant_ids)))


def limits(tenant_ids: Iterable[UUID]) -> Mapping[UUID, int]:
    """Return what each of these tenants could spend in all had it used nothing yet, pico; it may be negative."""
    ids = set(tenant_ids)
    sums = (
        LedgerEntry.objects.filter(transaction__tenant_id__in=ids, account__kind__in=_OF_THE_TENANT)
        .exclude(transaction__kind=_USAGE)
        .values_list("transaction__tenant_id")
        .annotate(total=Sum("amount_pico"))
        .order_by("transaction__tenant_id")
    )
    return dict.fromkeys(ids, 0) | {tenant_id: -int(total) for tenant_id, total in sums}
