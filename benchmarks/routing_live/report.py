"""The tables of a live comparison of routers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.machine import Machine
from benchmarks.routing.report import LEVEL
from benchmarks.routing_live.rounds import BUSY_SHARE, LATE_SECONDS, Outcome

TIMES = ("p50", "p90", "p99")
#: Follows the name of a router in whose run something else was the limit.
LIMITED = " †"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One router on one workload: the mean of its rounds."""

    workload: str
    router: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A whole run. ``lost``: router → why it has no figures."""

    command: str
    date: str
    commit: str
    machine: Machine
    replicas: int
    load: float
    rounds: int
    slowdown: float
    cells: Sequence[Cell]
    lost: Mapping[str, str]


def document(found: Comparison) -> str:
    """Return the section of docs/benchmarks.md."""
    busy = max((cell.outcome.spent.machine_busy for cell in found.cells), default=0.0)
    own = max((cell.outcome.spent.own_cores for cell in found.cells), default=0.0)
    late = max((cell.outcome.late_p99_seconds for cell in found.cells), default=0.0)
    lines = [
        f"- `{found.command}` on {found.date}, commit {found.commit}.",
        f"- {found.machine.described}; other processes used {found.machine.busy_share:.0%} of the cores before.",
        f"- {found.replicas} simulated engines at {found.load:.0%} load, {found.slowdown:g} times slower than in the "
        f"simulation above; rounds: {found.rounds}.",
        f"- Routers, engines and load generator used at most {own:.2f} cores; at most {busy:.0%} of all were in use. "
        f"99 % of the requests were sent at most {late * 1000:.0f} ms late.",
        "- Times are to the first token, in milliseconds; **bold** is the best of its column or within 2 % of it.",
    ]
    if any(cell.outcome.is_limited for cell in found.cells):
        lines.append(
            f"- †: more than 1 % of the requests were sent over {LATE_SECONDS * 1000:.0f} ms late, or over "
            f"{BUSY_SHARE:.0%} of the cores were in use: this says as much of the machine as of the router."
        )
    lines += [f"- Not measured: {router}, because {reason}." for router, reason in found.lost.items()]
    for workload in dict.fromkeys(cell.workload for cell in found.cells):
        lines += ["", *_table(workload, [cell for cell in found.cells if cell.workload == workload])]
    return "\n".join(lines)


def samples(found: Comparison) -> dict[str, object]:
    """Return everything for benchmarks/results. Infinities, which JSON lacks, become null."""
    return {name: _finite(value) for name, value in asdict(found).items()}


def _finite(value: object) -> object:
    match value:
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case float() if not math.isfinite(value):
            return None
    return value


def _table(workload: str, cells: Sequence[Cell]) -> list[str]:
    best = {name: min(getattr(cell.outcome.measures, name) for cell in cells) for name in TIMES}
    good = max(cell.outcome.measures.good for cell in cells)
    ideal = sum(cell.outcome.ideal_hit for cell in cells) / len(cells)
    seconds = max(cell.outcome.seconds for cell in cells)
    return [
        f"*{workload}*, {seconds:g} s, {ideal:.0%} of the prompt tokens could be cached:",
        "",
        "| router | p50 | p90 | p99 | good | hit tokens | max ÷ mean | Jain | turns that stay | failed | CPU/req |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_row(cell, best, good) for cell in cells),
    ]


def _row(cell: Cell, best: dict[str, float], good: float) -> str:
    outcome, found = cell.outcome, cell.outcome.measures
    times = [_marked(_milliseconds(getattr(found, name)), getattr(found, name) <= best[name] * LEVEL) for name in TIMES]
    cells = [
        cell.router + LIMITED * outcome.is_limited,
        *times,
        _marked(f"{found.good:.1%}", found.good * LEVEL >= good),
        f"{found.hit:.1%}",
        f"{found.skew:.2f}",
        f"{found.jain:.3f}",
        "" if found.stay is None else f"{found.stay:.1%}",
        f"{sum(outcome.failed.values())} of {outcome.requests}",
        f"{outcome.router_cpu_ms:.1f} ms",
    ]
    return f"| {' | '.join(cells)} |"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}" if math.isfinite(seconds) else "never"


def _marked(text: str, is_best: bool) -> str:
    return f"**{text}**" if is_best else text
