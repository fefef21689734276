"""What is left of promotions that have expired is taken back.

Usage that was accepted before a promotion expired is paid by it, even though its month closes later. So of a promotion
that has expired as much stays as such usage of open months costs that no promotion with an earlier end pays.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Sum

from billing.accounts import balance, entries
from billing.ledger import ledger
from billing.ledger.ledger import BilledMonth
from billing.models import CreditEntry, LedgerAccount, LedgerEntry
from tenants import audit
from tenants.audit import SYSTEM
from tenants.ids import TenantId, first_id_at
from tenants.models import Tenant


def expire(now: datetime) -> int:
    """Take back what is left of each promotion that has expired; return how many entries were made. Idempotent."""
    due = (
        CreditEntry.objects.filter(promotion__expires_at__lte=now)
        .values_list("tenant_id", "promotion_id")
        .annotate(left=Sum("amount_pico"))
        .filter(left__gt=0)
        .values_list("tenant_id", flat=True)
    )
    return sum(expire_of(tenant_id, now) for tenant_id in sorted(set(due)))


@transaction.atomic
def expire_of(tenant_id: UUID, now: datetime) -> int:
    """Do it for one tenant."""
    balance.lock(tenant_id)
    made, kept = 0, 0
    for part in balance.of(tenant_id).promotions:
        if part.expires_at is None or part.expires_at > now:
            break
        keep = min(part.left_pico, max(0, _open_usage(tenant_id, part.expires_at) - kept))
        kept += keep
        if keep == part.left_pico:
            continue
        tenant = Tenant.objects.get(id=tenant_id)
        gone = part.left_pico - keep
        entry = entries.add(tenant_id, tenant.currency, part, entries.Kind.EXPIRED, -gone)
        audit.record(
            SYSTEM,
            "credit.expired",
            ("credit", entry.id),
            tenant=tenant,
            after={"promotion": str(part.promotion_id), "amount_pico": -gone, "currency": tenant.currency},
        )
        made += 1
    return made


def _open_usage(tenant_id: UUID, before: datetime) -> int:
    """Return what the tenant was charged for requests accepted before a moment, in months that are open."""
    first = ledger.closed_until(TenantId(tenant_id)) or UUID(int=0)
    month = BilledMonth(tenant_id=TenantId(tenant_id), name="", first=first, behind=first_id_at(before))
    entry = LedgerEntry.objects.filter(account__kind=LedgerAccount.Kind.RECEIVABLE, transaction__in=month.own())
    return int(entry.aggregate(total=Sum("amount_pico", default=0))["total"])
