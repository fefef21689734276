"""Usage by tenant, project, key, model, day or cost centre as CSV: a row for the total, then one for each group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from billing.ledger.latency_buckets import Latency
from billing.ledger.rollups import Sums
from billing.reports.breakdown import Group
from portal.formats import money

_MONEY = {
    "amount_pico": "billed",
    "saved_prediction_pico": "saved_by_prediction",
    "saved_prefix_pico": "saved_by_prefix",
}
_SUMS = tuple(each.name for each in fields(Sums))
_TIMES = tuple((kind, f"{percentile}_ms") for kind in ("ttft", "tpot") for percentile in ("p50", "p95", "p99"))
CSV_HEADER = (
    *("by", "id", "name", *(_MONEY.get(name, name) for name in _SUMS)),
    *(f"{kind}_{percentile}" for kind, percentile in _TIMES),
)


def csv_rows(by: str, total: Sums, latency: Latency, groups: Iterable[Group]) -> Iterator[tuple[str, ...]]:
    """Yield the rows: whole tokens, money with twelve decimals, percentiles in milliseconds with three."""
    yield ("total", "", "", *_cells(total), *_percentiles(latency))
    for group in groups:
        identity = "" if group.id is None else str(group.id)
        yield (by, identity, group.name, *_cells(group.sums), *_percentiles(group.latency))


def _percentiles(latency: Latency | None) -> tuple[str, ...]:
    if latency is None:
        return ("",) * len(_TIMES)
    values = (getattr(getattr(latency, kind), percentile) for kind, percentile in _TIMES)
    return tuple("" if value is None else f"{value:.3f}" for value in values)


def _cells(sums: Sums) -> tuple[str, ...]:
    values = ((name, getattr(sums, name)) for name in _SUMS)
    return tuple(money.exact(value) if name in _MONEY else str(value) for name, value in values)
