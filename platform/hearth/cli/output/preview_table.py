"""What each tenant's last month would have cost, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from billing.months.previews import Preview  # its models need Django

HEADS = ("TENANT", "MONTH", "LIST PRICE", "WAS", "WOULD BE", "CHANGE")


def cells(found: Preview) -> tuple[str, ...]:
    """Return one tenant's cells."""
    from billing.pricing import amounts

    def money(pico: int) -> str:
        currency = found.was.currency if found.was else ""
        return f"{amounts.units(pico, currency)} {currency}".rstrip()

    slug, month = found.month.tenant.slug, found.month.name
    if found.was is None or found.would_be is None:
        return (slug, month, "", money(found.was.amount_pico) if found.was else "", found.problem, "")
    usage, was, would_be = found.was.usage_pico, found.was.amount_pico, found.would_be.amount_pico
    return (slug, month, money(usage), money(was), money(would_be), money(found.change_pico))


def as_json(rows: Sequence[tuple[str, ...]]) -> list[dict[str, str]]:
    """Return the rows as JSON values."""
    keys = [head.lower().replace(" ", "_") for head in HEADS]
    return [dict(zip(keys, row, strict=True)) for row in rows]
