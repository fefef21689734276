"""Retire the requests of a month in a test, as the hourly task does."""

from __future__ import annotations

from billing.ledger import partitions
from billing.ledger.partitions import Month
from retention import usage_export


def retire(month: Month) -> int | None:
    """Export and retire the partitions of a month; return the number of their rows, or None if there is none.

    Raises what exporting and retiring raise.
    """
    rows = []
    for each in partitions.existing():
        if each.month == month:
            usage_export.ensure(each)
            rows.append(partitions.retire(each))
    return sum(each or 0 for each in rows) if rows else None
