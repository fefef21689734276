"""What a run of the drain's benchmark found, as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.machine import Machine

#: Usage records a second, on a core of its own.
TARGET = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """One log that was drained: ``cpu_seconds`` of the drain's own process, and those of its server process."""

    tenants: int
    records: int
    seconds: float
    cpu_seconds: float
    postgres_cpu_seconds: float

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_us(self) -> float:
        """Its own processor time for a record, microseconds."""
        return 1e6 * self.cpu_seconds / self.records

    @property
    def cpu_rate(self) -> float:
        """Records a second of both one after the other, were neither ever without a core."""
        return self.records / (self.cpu_seconds + self.postgres_cpu_seconds)

    @property
    def postgres_cpu_us(self) -> float:
        """PostgreSQL's, without what its writers to the disk do."""
        return 1e6 * self.postgres_cpu_seconds / self.records


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that was measured, and where."""

    command: str
    date: str
    commit: str
    machine: Machine
    records: int
    rounds: int
    drained: Sequence[Drained]


def document(run: Run) -> str:
    """Return the section of docs/benchmarks.md."""
    found = run.machine
    lines = [
        f"- `{run.command}` on {run.date}, commit {run.commit}.",
        f"- {found.described}.",
        f"- {run.records:,} records a round, {run.rounds} rounds; each cell is the median [lowest–highest].",
    ]
    if found.busy_share > 0.1:
        lines.append(
            f"- **The machine was not quiet:** others used {found.busy_share:.0%} of it before the run, so records/s "
            "says what was left for it; read the processor time."
        )
    lines += [
        "",
        "| tenants | records/s | target |  | CPU/record, drain | CPU/record, PostgreSQL | records/s by CPU time |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *[_row(run, tenants) for tenants in sorted({each.tenants for each in run.drained})],
    ]
    return "\n".join(lines)


def _row(run: Run, tenants: int) -> str:
    found = [each for each in run.drained if each.tenants == tenants]
    rates = [each.rate for each in found]
    verdict = "met" if median(rates) >= TARGET else "**missed**"
    return (
        f"| {tenants:,} | {_spread(rates)} | ≥ {TARGET:,} | {verdict} | {_spread([each.cpu_us for each in found])} µs"
        f" | {_spread([each.postgres_cpu_us for each in found])} µs | {_spread([each.cpu_rate for each in found])} |"
    )


def _spread(figures: Sequence[float]) -> str:
    return f"{median(figures):,.0f} [{min(figures):,.0f}–{max(figures):,.0f}]"
