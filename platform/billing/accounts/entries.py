"""Write entries of credit, each with its balanced posting. Callers hold ``balance.lock``."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from billing.accounts.balance import Account, Part
from billing.ledger import transfers
from billing.ledger.transfers import Transfer
from billing.models import CreditEntry
from tenants.ids import new_id

Kind = CreditEntry.Kind
#: The account on the other side of what a person posts, by kind.
_OTHER_SIDE = {
    Kind.TOP_UP: Account.CASH,
    Kind.REFUND: Account.CASH,
    Kind.CORRECTION: Account.REVENUE,
    Kind.PROMOTION: Account.PROMOTION_COST,
    Kind.EXPIRED: Account.PROMOTION_COST,
    Kind.APPLIED: Account.RECEIVABLE,
    Kind.UNAPPLIED: Account.RECEIVABLE,
    Kind.OVERPAID: Account.RECEIVABLE,
    Kind.TRANSFER: Account.CASH,
}
#: How postings of credit are called in the ledger, by kind of entry.
_POSTINGS = {Kind.APPLIED: "credit_applied", Kind.UNAPPLIED: "credit_applied"}
POSTING = "credit"


def grant(tenant_id: UUID, currency: str, amount_pico: int, expires_at: datetime, **fields: Any) -> CreditEntry:
    """Write a promotion."""
    identity = new_id()
    part = Part(promotion_id=identity, left_pico=0, expires_at=expires_at)
    return add(
        tenant_id, currency, part, Kind.PROMOTION, amount_pico, identity=identity, expires_at=expires_at, **fields
    )


def add(
    tenant_id: UUID,
    currency: str,
    part: Part,
    kind: str,
    amount_pico: int,
    *,
    identity: UUID | None = None,
    source: str = "",
    **fields: Any,
) -> CreditEntry:
    """Add an amount to a part of a tenant's credit; a negative one takes from it.

    ``source``: the posting's, if it is not named by the entry.
    A reversal has the other side of the entry that it ``refers_to``.
    """
    identity = identity or new_id()
    refers_to: CreditEntry | None = fields.get("refers_to")
    of = refers_to.kind if kind == Kind.REVERSAL and refers_to is not None else kind
    source = source or f"{_POSTINGS.get(Kind(kind), POSTING)}:{identity}"
    posted = transfers.post(
        [
            Transfer(
                tenant_id=tenant_id,
                currency=currency,
                debit=_OTHER_SIDE[Kind(of)],
                credit=part.account,
                amount_pico=amount_pico,
                source=source,
            )
        ]
    )
    return CreditEntry.objects.create(
        id=identity,
        tenant_id=tenant_id,
        currency=currency,
        kind=kind,
        amount_pico=amount_pico,
        promotion_id=part.promotion_id,
        transaction_id=posted[source],
        **fields,
    )


def reverse(entry: CreditEntry, kind: str, **fields: Any) -> CreditEntry:
    """Take an entry back by another one."""
    part = Part(promotion_id=entry.promotion_id, left_pico=0)
    return add(entry.tenant_id, entry.currency, part, kind, -int(entry.amount_pico), refers_to=entry, **fields)
