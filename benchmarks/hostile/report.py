"""What a run of the benchmark of hostile tenants found, as a document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.machine import Machine

#: The quiet tenant's p99 beside an attack, as a multiple of its own alone.
TARGET = 2.0
#: A p99 alone that is shorter counts as this: a ratio of fractions of a millisecond says nothing.
LEAST_MS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """One attack. Times are the quiet tenant's, before the attack and beside it; memory includes child processes."""

    name: str
    described: str
    alone_p50_ms: float
    alone_p99_ms: float
    beside_p50_ms: float
    beside_p99_ms: float
    requests: int
    failures: int
    statuses: Mapping[str, int]
    memory_before_mib: float
    memory_most_mib: float

    @property
    def ratio(self) -> float:
        """The quiet tenant's p99 beside the attack, as a multiple of that alone; infinite if all alone failed."""
        if math.isinf(self.alone_p99_ms):
            return math.inf
        return self.beside_p99_ms / max(self.alone_p99_ms, LEAST_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that was measured, and where."""

    command: str
    date: str
    commit: str
    machine: Machine
    seconds: float
    rate: int
    attacked: Sequence[Attacked]


def document(run: Run) -> str:
    """Return the section of docs/benchmarks.md."""
    found = run.machine
    lines = [
        f"- `{run.command}` on {run.date}, commit {run.commit}.",
        f"- {found.described}.",
        f"- {run.seconds:g} s alone and as long beside each attack, {run.rate} requests/s of the quiet tenant.",
    ]
    if found.busy_share > 0.1:
        lines.append(f"- **The machine was not quiet:** others used {found.busy_share:.0%} of it before the run.")
    lines += [
        "",
        "| attack | p50 alone → beside | p99 alone → beside | ratio | target |  | failed | memory, most | answered |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *map(_row, run.attacked),
    ]
    return "\n".join(lines)


def _row(found: Attacked) -> str:
    met = found.ratio <= TARGET and not found.failures
    statuses = ", ".join(f"{number:,} × {status}" for status, number in sorted(found.statuses.items())) or "nothing"
    return (
        f"| {found.described} | {found.alone_p50_ms:.1f} → {found.beside_p50_ms:.1f} ms "
        f"| {found.alone_p99_ms:.1f} → {found.beside_p99_ms:.1f} ms | {found.ratio:.1f} | ≤ {TARGET:g} "
        f"| {'met' if met else '**missed**'} | {found.failures} of {found.requests:,} "
        f"| {found.memory_before_mib:.0f} → {found.memory_most_mib:.0f} MiB | {statuses} |"
    )
