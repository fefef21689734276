"""Turn the figures of a run into one document, and say which targets it misses."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.coldstart.rounds import Figures, Kind, Place
from benchmarks.coldstart.weights_read import WeightsRead
from benchmarks.machine import Machine

PLACES: dict[Place, str] = {"idle": "an idle node", "beside": "beside a serving replica"}
TARGET_RATIOS: dict[Place, float] = {"idle": 8.0, "beside": 5.0}
TARGET_EVICTION_SECONDS = 0.1
QUIET_MACHINE = 0.05
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that one run found. ``engine``: the package and version of vLLM."""

    command: str
    date: str
    commit: str
    machine: Machine
    engine: str
    rounds: int
    figures: Figures


def document(run: Run) -> str:
    """Return the Markdown between the markers of docs/benchmarks.md."""
    figures = run.figures
    return "\n\n".join([_conditions(run), _starts(figures), _zygotes(figures), reads(figures.reads), _targets(figures)])


def as_json(run: Run) -> dict[str, object]:
    """Return every sample and every condition."""
    return asdict(run)


def _conditions(run: Run) -> str:
    machine = run.machine
    lines = [
        f"`{run.command}` on {run.date}, commit {run.commit}.",
        f"{machine.described}, {run.engine}.",
        f"Rounds: {run.rounds} on an idle node, then {run.rounds} beside a serving replica; each cell is the median "
        "[lowest–highest].",
    ]
    if machine.busy_share > QUIET_MACHINE:
        lines.append(
            f"**The machine was not quiet:** others used {machine.busy_share:.0%} of it before the run, so compare "
            "rows, not with other runs."
        )
    return "\n".join(f"- {line}" for line in lines)


def _starts(figures: Figures) -> str:
    header = ["to the first token", "cold", "promoted", "cold / promoted", "served beside a cold start, a promotion"]
    rows = []
    for place, title in PLACES.items():
        rows.append(
            [
                title,
                f"{_spread(figures.seconds('cold', place))} s",
                f"{_spread(figures.seconds('promoted', place))} s",
                f"{figures.ratio(place):.1f} ×",
                _neighbour(figures, place),
            ]
        )
    memory = [f"{_spread(_memory(figures, kind), digits=0)} MiB" for kind in ("cold", "promoted")]
    rows.append(["memory of its processes", *memory, "", ""])
    return _table(header, rows)


def _zygotes(figures: Figures) -> str:
    header = ["a zygote", "imports", "resident", "its own", "evicted in"]
    rows = []
    for place, title in PLACES.items():
        warm = [zygote for zygote in figures.zygotes if zygote.place == place]
        gone = [zygote.eviction_seconds * 1000 for zygote in warm if zygote.eviction_seconds is not None]
        rows.append(
            [
                title,
                f"{_spread([zygote.warm_up_seconds for zygote in warm])} s",
                f"{statistics.median(zygote.memory_bytes for zygote in warm) / MIB:,.0f} MiB",
                f"{statistics.median(zygote.own_bytes for zygote in warm) / MIB:,.0f} MiB",
                f"{_spread(gone, digits=0)} ms",
            ]
        )
    return _table(header, rows)


def reads(found: Sequence[WeightsRead]) -> str:
    """Return what staging files in the page cache saves."""
    disk, staged = [each.disk_seconds for each in found], [each.staged_seconds for each in found]
    title = f"{found[0].bytes_read / 2**30:g} GiB of weights, read"
    ratio = statistics.median(disk) / statistics.median(staged)
    return _table(
        ["", "from the disk", "staged in the page cache", "disk / page cache"],
        [[title, f"{_spread(disk)} s", f"{_spread(staged)} s", f"{ratio:.1f} ×"]],
    )


def _targets(figures: Figures) -> str:
    lines = []
    for place, target in TARGET_RATIOS.items():
        verdict = "reached" if figures.ratio(place) >= target else "**missed**"
        lines.append(f"{target:g} × faster on {PLACES[place]}" if place == "idle" else f"{target:g} × {PLACES[place]}")
        lines[-1] += f": {verdict} ({figures.ratio(place):.1f} ×)."
    worst = max(zygote.eviction_seconds for zygote in figures.zygotes if zygote.eviction_seconds is not None)
    verdict = "reached" if worst <= TARGET_EVICTION_SECONDS else "**missed**"
    lines.append(f"Every eviction within {TARGET_EVICTION_SECONDS * 1000:.0f} ms: {verdict} ({worst * 1000:.0f} ms).")
    return "\n".join(f"- {line}" for line in lines)


def _neighbour(figures: Figures, place: Place) -> str:
    if place == "idle":
        return "–"
    rates: list[str] = []
    for kind in ("cold", "promoted"):
        served = [
            sample.neighbour_tokens_per_second
            for sample in figures.samples
            if sample.kind == kind and sample.neighbour_tokens_per_second is not None
        ]
        rates.append(f"{statistics.median(served):,.0f}")
    return f"{', '.join(rates)} tokens/s (alone {figures.neighbour_alone_tokens_per_second:,.0f})"


def _memory(figures: Figures, kind: Kind) -> list[float]:
    return [
        sample.start.memory_bytes / MIB for sample in figures.samples if (sample.kind, sample.place) == (kind, "idle")
    ]


def _spread(values: Sequence[float], *, digits: int = 2) -> str:
    return f"{statistics.median(values):,.{digits}f} [{min(values):,.{digits}f}–{max(values):,.{digits}f}]"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ruler, *rows])
