"""The tables of constant rates and of idle streams."""

from __future__ import annotations

from benchmarks.gateway import tables
from benchmarks.gateway.contenders import DIRECT, HEARTH
from benchmarks.gateway.findings import Run
from benchmarks.gateway.load import HITS, NEW
from benchmarks.gateway.steady import Steady

#: The least number of answers for which a percentile is given, so that at least one lies beyond it.
ANSWERS_FOR_P99, ANSWERS_FOR_P999 = 100, 1_000


def steady(run: Run) -> str:
    """Return the table of latency at constant rates, rate by rate and then at half of each one's capacity."""
    header = ["", "rate", "p50", "p95", "p99", "p99.9", "added p50", "added p99", "CPU/req", "failed"]
    common = sorted((each for each in run.steady if not each.halved), key=lambda each: each.arrivals.rate)
    halved = [each for each in run.steady if each.halved]
    return tables.table(header, [_row(run, each) for each in [*common, *halved]])


def added_us(run: Run, each: Steady, percentile: str) -> float | None:
    """Return how much longer than without a gateway at the same rate; None where that was not measured."""
    direct = next(
        (
            other
            for other in run.steady_of(DIRECT)
            if other.arrivals.rate == each.arrivals.rate and other.traffic == NEW and each.name != DIRECT
        ),
        None,
    )
    if direct is None:
        return None
    here: float = getattr(each.arrivals.whole, percentile)
    there: float = getattr(direct.arrivals.whole, percentile)
    return here - there


def _row(run: Run, each: Steady) -> list[str]:
    found = each.arrivals
    title = run.title(each.name)
    if each.name == HEARTH and each.traffic == HITS:
        title += ", prediction hits"
    rate = f"{found.rate:,}/s" + (" (half)" if each.halved else "")
    p99_known, p999_known = found.answered >= ANSWERS_FOR_P99, found.answered >= ANSWERS_FOR_P999
    return [
        title,
        rate,
        tables.milliseconds(found.whole.p50),
        tables.milliseconds(found.whole.p95),
        tables.milliseconds(found.whole.p99 if p99_known else None),
        tables.milliseconds(found.whole.p999 if p999_known else None),
        tables.milliseconds(added_us(run, each, "p50")),
        tables.milliseconds(added_us(run, each, "p99") if p99_known else None),
        tables.NOTHING if each.name == DIRECT else tables.cpu(each.cpu_us_per_request),
        f"{found.failed:,}" if found.failed else "0",
    ]


def idle(run: Run) -> str:
    """Return the table of memory with idle streams."""
    rows = []
    for name, each in run.idle.items():
        rows.append(
            [
                run.title(name),
                f"{each.opened:,}",
                f"{each.seconds:.1f} s",
                tables.mebibytes(each.memory_before_bytes),
                tables.mebibytes(each.memory_bytes),
                f"{each.bytes_per_stream / 1024:,.0f} KiB" if each.opened else tables.NOTHING,
            ]
        )
    return tables.table(["", "opened", "in", "memory before", "memory with them", "each"], rows)
