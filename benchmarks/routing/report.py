"""The table of a comparison of routing policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.routing.measures import Measures

#: Within this factor of the best a figure counts as level with it.
LEVEL = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One policy on one workload."""

    workload: str
    load: float
    policy: str
    measures: Measures
    #: The hit rate of one cache without end.
    ideal_hit: float


def document(
    cells: Sequence[Cell], *, asked: str, date: str, commit: str, replicas: int, gateways: int, seeds: int
) -> str:
    """Return the section of docs/benchmarks.md."""
    lines = [
        f"- `{asked}` on {date}, commit {commit}.",
        f"- {replicas} simulated engines, gateway processes: {gateways}, means of {seeds} seeds.",
        "- Times are to the first token, in milliseconds; **bold** is the best of its column or within 2 % of it.",
    ]
    for workload, load in dict.fromkeys((cell.workload, cell.load) for cell in cells):
        group = [cell for cell in cells if (cell.workload, cell.load) == (workload, load)]
        lines += ["", *_table(workload, load, group)]
    return "\n".join(lines)


def _table(workload: str, load: float, group: Sequence[Cell]) -> list[str]:
    best = {name: min(getattr(cell.measures, name) for cell in group) for name in ("p50", "p90", "p99")}
    good = max(cell.measures.good for cell in group)
    return [
        f"*{workload}*, load {load:.0%}, {group[0].ideal_hit:.0%} of the prompt tokens could be cached:",
        "",
        "| policy | p50 | p90 | p99 | good | hit tokens | max ÷ mean | turns that stay |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_row(cell, best, good) for cell in group),
    ]


def _row(cell: Cell, best: dict[str, float], good: float) -> str:
    found = cell.measures
    times = [
        _marked(f"{getattr(found, name) * 1000:,.0f}", getattr(found, name) <= best[name] * LEVEL) for name in best
    ]
    stay = "" if found.stay is None else f"{found.stay:.1%}"
    return (
        f"| {cell.policy} | {' | '.join(times)} | {_marked(f'{found.good:.1%}', found.good * LEVEL >= good)} "
        f"| {found.hit:.1%} | {found.skew:.2f} | {stay} |"
    )


def _marked(text: str, is_best: bool) -> str:
    return f"**{text}**" if is_best else text
