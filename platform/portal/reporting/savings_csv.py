"""Savings as CSV: a row for the total, then one for each project, key, model or tenant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from billing.reports.savings import Group, Savings
from portal.formats import money

CSV_HEADER = (
    "by",
    "id",
    "name",
    "requests",
    "prediction_hits",
    "coalesced_requests",
    "prediction_misses",
    "bypassed_requests",
    "tokens_avoided",
    "engine_seconds_avoided",
    "saved_by_prediction",
    "prefix_hits",
    "cached_prompt_tokens",
    "saved_by_prefix",
)


def csv_rows(by: str, total: Savings, groups: Iterable[Group]) -> Iterator[tuple[str, ...]]:
    """Yield the rows: whole tokens, seconds with three decimals, money with twelve."""
    yield ("total", "", "", *_cells(total))
    for group in groups:
        yield (by, "" if group.id is None else str(group.id), group.name, *_cells(group.savings))


def _cells(found: Savings) -> tuple[str, ...]:
    prediction, prefix = found.prediction, found.prefix
    return (
        str(found.requests),
        str(prediction.hits),
        str(prediction.coalesced),
        str(prediction.misses),
        str(prediction.bypassed),
        str(prediction.tokens),
        f"{prediction.engine_ms / 1000:.3f}",
        money.exact(prediction.pico),
        str(prefix.requests),
        str(prefix.tokens),
        money.exact(prefix.pico),
    )
