"""Invoices, as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from django.utils import timezone

from billing.invoices import registry, states
from billing.models import Invoice
from billing.pricing import amounts
from portal.formats.csv_export import cell

HEADER = (
    *("number", "tenant", "month", "state", "currency", "net", "tax", "total", "applied", "paid", "open"),
    *("issued_on", "due_on", "sent_at", "paid_at", "voided_at", "replaces", "credit_note", "credited"),
)


def rows(invoices: Iterable[Invoice], slugs: Mapping[UUID, str]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each invoice."""
    today = timezone.now().date()
    for each in invoices:
        note = each.credit_note
        yield (
            each.number,
            slugs.get(each.tenant_id, str(each.tenant_id)),
            each.period,
            states.shown(each, today),
            each.currency,
            *(
                amounts.of_minor(cents, each.currency)
                for cents in (
                    *(each.net_cents, each.tax_cents, each.total_cents, each.applied_cents),
                    *(registry.paid_cents(each), registry.open_cents(each)),
                )
            ),
            each.issued_on.isoformat(),
            each.due_on.isoformat(),
            *map(cell, (each.sent_at, each.paid_at, each.voided_at)),
            each.replaces.number if each.replaces else "",
            note.number if note else "",
            amounts.of_minor(registry.credited_cents(each), each.currency),
        )
