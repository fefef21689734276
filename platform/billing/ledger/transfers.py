"""Postings between two accounts of a tenant that are not charges: rounding, tax, payments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from billing.models import LedgerAccount, LedgerEntry, LedgerTransaction
from tenants.ids import new_id

Kind = LedgerAccount.Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Debit one account and credit another. ``source`` is the posting's unique name, and begins with its kind."""

    tenant_id: UUID
    currency: str
    debit: Kind
    credit: Kind
    #: Negative: the other way round.
    amount_pico: int
    source: str

    @property
    def kind(self) -> str:
        """What it is for."""
        return self.source.partition(":")[0]


def post(transfers: Iterable[Transfer]) -> dict[str, UUID]:
    """Post each transfer; return the transactions' ids by source.

    Call it in the transaction that stores what is posted. Raises IntegrityError if a source was posted before; the
    transaction is then rolled back.
    """
    found: dict[str, UUID] = {}
    for each in transfers:
        posting = LedgerTransaction.objects.create(
            id=new_id(), tenant_id=each.tenant_id, kind=each.kind, source=each.source
        )
        for kind, amount in ((each.debit, each.amount_pico), (each.credit, -each.amount_pico)):
            account, _ = LedgerAccount.objects.get_or_create(
                tenant_id=each.tenant_id, kind=kind, currency=each.currency
            )
            LedgerEntry.objects.create(transaction=posting, account=account, amount_pico=amount)
        found[each.source] = posting.id
    return found
