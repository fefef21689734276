"""The double-entry ledger: what each tenant owes, balanced by the platform's revenue from it.

Amounts are pico-units of the account's currency, debit positive. The database rejects a transaction that does not sum
to zero, a second transaction of the same source, and any change to an entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Sum

from billing.ledger import bulk_insert
from billing.ledger.usage_rows import NUMBER
from billing.models import LedgerAccount, LedgerEntry, LedgerTransaction
from tenants.ids import TenantId, new_id

USAGE = "usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """What one tenant owes for requests of one quarter of an hour."""

    tenant_id: UUID
    currency: str
    amount_pico: int
    usage_ids: tuple[UUID, ...]

    @property
    def source(self) -> str:
        """Return the posting's unique name. Each request is posted once, so the lowest request id identifies it."""
        return f"{USAGE}:{min(self.usage_ids, key=NUMBER)}"


def post(postings: Iterable[Posting]) -> None:
    """Debit each tenant's receivable and credit its revenue. Call it in the transaction that stores the usage.

    Raises IntegrityError if a source was posted before; the transaction is then rolled back.
    """
    ordered = sorted(postings, key=lambda posting: (posting.tenant_id, posting.currency))
    if not ordered:
        return
    accounts = _accounts({(posting.tenant_id, posting.currency) for posting in ordered})
    numbered = [(new_id(), posting) for posting in ordered]
    transactions = [
        {
            "id": identity,
            "tenant_id": posting.tenant_id,
            "kind": USAGE,
            "source": posting.source,
            "usage_ids": posting.usage_ids,
        }
        for identity, posting in numbered
    ]
    entries = [
        {
            "id": new_id(),
            "transaction_id": identity,
            "account_id": accounts[posting.tenant_id, posting.currency, kind],
            "amount_pico": str(sign * posting.amount_pico),
        }
        for identity, posting in numbered
        for kind, sign in ((LedgerAccount.Kind.RECEIVABLE, 1), (LedgerAccount.Kind.REVENUE, -1))
    ]
    _insert(LedgerTransaction._meta.db_table, transactions)
    _insert(LedgerEntry._meta.db_table, entries)


def posted(tenant_id: TenantId, first: UUID, behind: UUID) -> dict[str, int]:
    """Return, by currency, what the tenant owes for requests with ids from ``first`` to before ``behind``.

    Exact for bounds on a quarter of an hour, because no posting spans one. Ids sort as text as they do as numbers, so
    the range uses the index on sources.
    """
    sums = (
        LedgerEntry.objects.filter(
            account__kind=LedgerAccount.Kind.RECEIVABLE,
            transaction__tenant_id=tenant_id,
            transaction__source__gte=f"{USAGE}:{first}",
            transaction__source__lt=f"{USAGE}:{behind}",
        )
        .values_list("account__currency")
        .annotate(total=Sum("amount_pico"))
        .order_by("account__currency")
    )
    return {currency: int(total) for currency, total in sums}


def _insert(table: str, documents: list[dict[str, object]]) -> None:
    """Insert rows with the same columns in one statement.

    With traffic of 400 tenants, a row costs the drain 35 µs of processor time; the ORM needs 60 µs.
    """
    columns = ", ".join(documents[0])
    bulk_insert.execute(
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM json_populate_recordset(NULL::{table}, %s)", documents
    )


def _accounts(owners: Iterable[tuple[UUID, str]]) -> dict[tuple[UUID, str, str], UUID]:
    """Return the ids of both accounts of each tenant and currency; create missing ones, always in the same order."""
    wanted = [(tenant, currency, kind.value) for tenant, currency in sorted(owners) for kind in LedgerAccount.Kind]
    found = _existing(wanted)
    if missing := [key for key in wanted if key not in found]:
        LedgerAccount.objects.bulk_create(
            [LedgerAccount(tenant_id=tenant, currency=currency, kind=kind) for tenant, currency, kind in missing],
            ignore_conflicts=True,
        )
        found = _existing(wanted)
    return found


def _existing(wanted: Iterable[tuple[UUID, str, str]]) -> dict[tuple[UUID, str, str], UUID]:
    accounts = LedgerAccount.objects.filter(tenant_id__in={tenant for tenant, _, _ in wanted})
    rows = accounts.values_list("tenant_id", "currency", "kind", "id")
    return {(tenant_id, currency, kind): identity for tenant_id, currency, kind, identity in rows}
