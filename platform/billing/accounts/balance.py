"""What credit a tenant has: prepaid, and what is left of each promotion.

``CreditEntry`` has one row for each posting that changes it. Whoever adds one holds :func:`lock`, so that no two
together take more than there is; the database refuses a sum below zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models import Q, Sum

from billing.models import CreditEntry, LedgerAccount

#: First half of the advisory lock of a tenant's credit: "crd" in ASCII. Taken after that of its months.
LOCK = 0x637264
Account = LedgerAccount.Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a tenant's credit: what is left of a promotion, or, without one, what is prepaid."""

    promotion_id: UUID | None
    left_pico: int
    expires_at: datetime | None = None

    @property
    def account(self) -> Account:
        """The account of the ledger that it is in."""
        return Account.PREPAID if self.promotion_id is None else Account.PROMOTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """A tenant's credit: prepaid, and the promotions of which something is left, in the order of use."""

    prepaid_pico: int
    promotions: tuple[Part, ...]

    @property
    def promotion_pico(self) -> int:
        """What is left of all promotions."""
        return sum(each.left_pico for each in self.promotions)

    @property
    def total_pico(self) -> int:
        """All credit."""
        return self.prepaid_pico + self.promotion_pico

    @property
    def parts(self) -> tuple[Part, ...]:
        """What pays first comes first: promotions by when they expire, then what is prepaid."""
        return (*self.promotions, Part(promotion_id=None, left_pico=self.prepaid_pico))


def lock(tenant_id: UUID) -> None:
    """Prevent other changes to the tenant's credit until the current transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [LOCK, str(tenant_id)])


def of(tenant_id: UUID) -> Balance:
    """Return a tenant's credit."""
    return of_all([tenant_id])[tenant_id]


def of_all(tenant_ids: Iterable[UUID]) -> dict[UUID, Balance]:
    """Return the credit of each of these tenants."""
    ids = set(tenant_ids)
    sums = (
        CreditEntry.objects.filter(tenant_id__in=ids)
        .values_list("tenant_id", "promotion_id", "promotion__expires_at")
        .annotate(left=Sum("amount_pico"))
        .filter(Q(promotion_id=None) | Q(left__gt=0))
        .order_by("promotion__expires_at", "promotion_id")
    )
    prepaid, promotions = dict.fromkeys(ids, 0), {each: list[Part]() for each in ids}
    for tenant_id, promotion_id, expires_at, left in sums:
        if promotion_id is None:
            prepaid[tenant_id] = int(left)
        else:
            part = Part(promotion_id=promotion_id, left_pico=int(left), expires_at=expires_at)
            promotions[tenant_id].append(part)
    return {each: Balance(prepaid_pico=prepaid[each], promotions=tuple(promotions[each])) for each in ids}


def left_of(promotion_id: UUID) -> int:
    """Return what is left of a promotion."""
    return int(
        CreditEntry.objects.filter(promotion_id=promotion_id).aggregate(left=Sum("amount_pico", default=0))["left"]
    )
