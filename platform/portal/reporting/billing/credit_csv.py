"""The history of a tenant's credit, as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from billing.models import CreditEntry
from billing.pricing import amounts
from portal.formats.csv_export import cell

CSV_HEADER = (
    "id", "created_at", "kind", "amount_pico", "amount", "currency", "promotion_id", "expires_at", "month",
    "refers_to", "reason", "reference", "transaction_id",
)  # fmt: skip


def csv_rows(entries: Iterable[CreditEntry]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each entry."""
    for each in entries:
        yield (
            str(each.id),
            each.created_at.isoformat(),
            each.kind,
            str(each.amount_pico),
            amounts.units(int(each.amount_pico), each.currency),
            each.currency,
            str(each.promotion_id or ""),
            cell(each.expires_at),
            each.closing.name if each.closing else "",
            str(each.refers_to_id or ""),
            each.request.reason if each.request else "",
            each.request.reference if each.request else "",
            str(each.transaction_id),
        )
