"""What placeholders cost and saved as CSV: a row for each day and pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from portal.formats import money
from workers.serving.placeholder_costs import PlaceholderCost

CSV_HEADER = (
    "day",
    "pool",
    "slot_hours",
    "waited_hours",
    "memory_gib_hours",
    "promotions",
    "unmeasured_promotions",
    "saved_seconds",
    "cost_usd",
)


def csv_rows(costs: Iterable[PlaceholderCost]) -> Iterator[tuple[str, ...]]:
    """Yield the rows: hours with six decimals, seconds with three, money with twelve; no money where none is set."""
    for each in costs:
        yield (
            each.day.isoformat(),
            each.pool,
            f"{each.slot_hours:.6f}",
            f"{each.waited_hours:.6f}",
            f"{each.memory_gib_hours:.6f}",
            str(each.promotions),
            str(each.unmeasured),
            f"{each.saved_seconds:.3f}",
            "" if each.cost_pico is None else money.exact(each.cost_pico),
        )
