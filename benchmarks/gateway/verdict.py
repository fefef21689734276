"""What a run says of Hearth: its targets, met or missed, and everything in which another gateway beats it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gateway import tables
from benchmarks.gateway.contenders import DIRECT, HEARTH
from benchmarks.gateway.findings import Run
from benchmarks.gateway.latency_tables import added_us
from benchmarks.gateway.load import HITS, NEW, STREAM, Traffic
from benchmarks.gateway.plan import BUSY_CONNECTIONS
from benchmarks.gateway.rounds import Figures
from benchmarks.gateway.throughput_tables import added_p50_us, p50_us, p99_us

#: Less is the spread of a quiet run.
NOTABLE = 1.05
#: At which constant rate contenders are compared.
COMMON_RATE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target. ``found`` None: this run did not measure it. ``at_most``: less is better."""

    what: str
    wanted: float
    found: float | None
    shown: Callable[[float], str]
    at_most: bool = False

    def row(self) -> list[str]:
        """Return its row: what, target, figure, verdict."""
        if self.found is None:
            return [self.what, self._bound(), tables.NOTHING, "not measured"]
        met = self.found <= self.wanted if self.at_most else self.found >= self.wanted
        return [self.what, self._bound(), self.shown(self.found), "met" if met else "**missed**"]

    def _bound(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.shown(self.wanted)}"


def targets(run: Run) -> str:
    """Return the table of targets."""
    return tables.table(["", "target", "found", ""], [target.row() for target in _targets(run)])


def _targets(run: Run) -> list[Target]:
    return [*_throughput(run), *_latency(run), *_footprint(run)]


def _throughput(run: Run) -> list[Target]:
    busy = _figure(run, HEARTH, lambda figures: figures.rps(NEW, BUSY_CONNECTIONS))
    sglang = _figure(run, "sglang-router", lambda figures: figures.rps(NEW, BUSY_CONNECTIONS))
    litellm = _figure(run, "litellm", lambda figures: figures.rps(NEW, BUSY_CONNECTIONS))
    streams = run.plan.stream_connections
    return [
        Target(what="requests/s per core, everything on, 64 connections", wanted=5_200, found=busy, shown=_rate),
        Target(what="of sglang-router's", wanted=0.6, found=_quotient(busy, sglang), shown=_times),
        Target(what="of LiteLLM's", wanted=50, found=_quotient(busy, litellm), shown=_times),
        Target(
            what="prediction hits/s per core, 64 connections",
            wanted=10_000,
            found=_figure(run, HEARTH, lambda figures: figures.rps(HITS, BUSY_CONNECTIONS)),
            shown=_rate,
        ),
        Target(
            what="short streams/s per core",
            wanted=1_500,
            found=_figure(run, HEARTH, lambda figures: figures.rps(STREAM, streams)),
            shown=_rate,
        ),
    ]


def _latency(run: Run) -> list[Target]:
    return [
        Target(
            what="added p50, 1 connection",
            wanted=600,
            found=_figure(run, HEARTH, lambda figures: added_p50_us(run, figures, NEW)),
            shown=tables.milliseconds,
            at_most=True,
        ),
        Target(
            what="added p99, 1 connection",
            wanted=3_000,
            found=_difference(
                _figure(run, HEARTH, lambda figures: figures.median(NEW, 1, p99_us)),
                _figure(run, DIRECT, lambda figures: figures.median(NEW, 1, p99_us)),
            ),
            shown=tables.milliseconds,
            at_most=True,
        ),
        Target(
            what="p50 of a prediction hit, 1 connection",
            wanted=400,
            found=_figure(run, HEARTH, lambda figures: figures.median(HITS, 1, p50_us)),
            shown=tables.milliseconds,
            at_most=True,
        ),
        Target(
            what="p50 of a routing decision, 8,000 tokens of a known session",
            wanted=300,
            found=run.decision_us,
            shown=tables.milliseconds,
            at_most=True,
        ),
    ]


def _footprint(run: Run) -> list[Target]:
    idle = run.idle.get(HEARTH)
    all_open = idle is not None and idle.opened >= 2_000
    return [
        Target(
            what="memory with 2,000 idle streams",
            wanted=250e6,
            found=float(idle.memory_bytes) if idle is not None and all_open else None,
            shown=_megabytes,
            at_most=True,
        ),
    ]


def behind(run: Run) -> str:
    """Say in words every figure in which another gateway beats Hearth by more than the spread of a quiet run."""
    hearth = run.hearth
    if hearth is None:
        return "Hearth was not run."
    lines = []
    others = {name: figures for name, figures in run.figures.items() if name not in {DIRECT, HEARTH}}
    if not others:
        return "Nobody else was measured."
    for name, figures in others.items():
        lost = [*_slower(run, hearth, figures), *_later(run, name), *_larger(run, name)]
        if lost:
            lines.append(f"{figures.contender.title}: {'; '.join(lost)}.")
    return tables.bullets(lines) or "Nowhere in this run."


def _slower(run: Run, hearth: Figures, other: Figures) -> list[str]:
    """Return where the other answers more."""
    shots = [(NEW, number, f"requests/s on {number} conn.") for number in run.plan.connections]
    shots.append((STREAM, run.plan.stream_connections, "streams/s"))
    for size in run.plan.larger_bodies:
        connections = run.plan.larger_connections
        shots.append((Traffic("new", size), connections, f"requests/s of {tables.size(size)}"))
        shots.append((Traffic("stream", size), connections, f"streams/s of {tables.size(size)}"))
    found = []
    for traffic, connections, what in shots:
        factor = _quotient(other.rps(traffic, connections), hearth.rps(traffic, connections))
        if factor is not None and factor > NOTABLE:
            found.append(f"{factor:.2f} × as many {what}")
    return found


def _later(run: Run, name: str) -> list[str]:
    """Return by how much less the other delays an answer at a constant rate."""
    found = []
    for percentile, label in (("p50", "p50"), ("p99", "p99")):
        ours, theirs = (_added_at_common_rate(run, each, percentile) for each in (HEARTH, name))
        if ours is not None and theirs is not None and ours > max(theirs, 0.0) * NOTABLE:
            found.append(
                f"adds {tables.milliseconds(theirs)} to {label} at {COMMON_RATE}/s where Hearth adds "
                f"{tables.milliseconds(ours)}"
            )
    return found


def _larger(run: Run, name: str) -> list[str]:
    """Return where Hearth takes more memory."""
    found = []
    ours, theirs = run.figures[HEARTH].memory_bytes, run.figures[name].memory_bytes
    factor = _quotient(ours, theirs)
    if factor is not None and factor > NOTABLE:
        found.append(f"Hearth takes {factor:.1f} × the memory")
    held, others = run.idle.get(HEARTH), run.idle.get(name)
    if held is not None and others is not None and held.opened and others.opened:
        factor = _quotient(held.bytes_per_stream, others.bytes_per_stream)
        if factor is not None and factor > NOTABLE:
            found.append(f"Hearth takes {factor:.1f} × the memory for each idle stream")
    return found


def _added_at_common_rate(run: Run, name: str, percentile: str) -> float | None:
    for each in run.steady_of(name):
        if each.arrivals.rate == COMMON_RATE and each.traffic == NEW and not each.halved:
            return added_us(run, each, percentile)
    return None


def _figure(run: Run, name: str, figure: Callable[[Figures], float | None]) -> float | None:
    figures = run.figures.get(name)
    return None if figures is None else figure(figures)


def _quotient(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other or other < 0 else one / other


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _times(value: float) -> str:
    return f"{value:.2f} ×"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB"
