"""What a run of the usage benchmark found, as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.machine import Machine

#: The longest that a person should wait for a page, milliseconds.
TARGET_MS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What was filled in, and how long it took. ``gib``: the partitions, with their indexes."""

    rows: int
    rollups: int
    postings: int
    tenants: int
    gib: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question. ``waits``: whether a person waits for the answer. ``first_ms``: before the server had read it."""

    what: str
    waits: bool
    first_ms: float
    ms: Sequence[float]
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that was measured, and where."""

    command: str
    date: str
    commit: str
    machine: Machine
    filled: Filled
    asked: Sequence[Asked]


def document(run: Run) -> str:
    """Return the section of docs/benchmarks.md."""
    found, filled = run.machine, run.filled
    lines = [
        f"- `{run.command}` on {run.date}, commit {run.commit}.",
        f"- {found.described}.",
        f"- {filled.rows:,} requests of {filled.tenants} tenants in six days ({filled.gib:.1f} GiB with indexes), "
        f"{filled.rollups:,} roll-ups of 90 days, {filled.postings:,} postings; filled in {filled.seconds:,.0f} s.",
    ]
    if found.busy_share > 0.1:
        lines.append(f"- **The machine was not quiet:** others used {found.busy_share:.0%} of it before the run.")
    lines += [
        "",
        "| question | partitions read | first, ms | then, ms | target |  |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *map(_row, run.asked),
    ]
    return "\n".join(lines)


def _row(each: Asked) -> str:
    later = f"{median(each.ms):,.0f} [{min(each.ms):,.0f}–{max(each.ms):,.0f}]" if each.ms else ""
    slowest = median(each.ms) if each.ms else each.first_ms
    target, verdict = (
        (f"≤ {TARGET_MS:,.0f}", "met" if slowest <= TARGET_MS else "**missed**") if each.waits else ("", "")
    )
    return f"| {each.what} | {each.partitions} | {each.first_ms:,.0f} | {later} | {target} | {verdict} |"
