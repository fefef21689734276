"""What a run of the portal's benchmark found, as a document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What was filled in, and how long it took. ``gib``: the partitions of single requests, with their indexes."""

    rows: int
    rollups: int
    tenants: int
    invoices: int
    gib: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One address: each time that it took, and the processor time of the portal and of PostgreSQL together."""

    who: str
    what: str
    target_ms: float | None
    statements: int
    ms: Sequence[float]
    cpu_ms: Sequence[float]

    @property
    def p95_ms(self) -> float:
        """Return the 95th percentile of its times."""
        return percentile(self.ms, 95)

    @property
    def is_met(self) -> bool:
        """Return whether the 95th percentile is within the target."""
        return self.target_ms is None or self.p95_ms <= self.target_ms

    @property
    def is_met_alone(self) -> bool:
        """Return whether it is by processor time: what the machine would need if it did nothing else."""
        return self.target_ms is None or percentile(self.cpu_ms, 95) <= self.target_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What ``sockets`` open live pages cost in one stage of the run; all figures are per second.

    ``transactions``: PostgreSQL's, with those of the changes; nearly every statement is a transaction of its own.
    """

    what: str
    sockets: int
    transactions: float
    portal_cpu_ms: float
    postgres_cpu_ms: float
    messages: float
    kib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that was measured, and where."""

    command: str
    date: str
    commit: str
    machine: Machine
    filled: Filled
    opened: Sequence[Opened]
    watched: Sequence[Watched] = ()


def percentile(figures: Sequence[float], percent: float) -> float:
    """Return the figure with that rank."""
    return sorted(figures)[math.ceil(len(figures) * percent / 100) - 1]


def document(run: Run) -> str:
    """Return the section of docs/benchmarks.md: how many addresses met their target, and the slowest."""
    found, filled = run.machine, run.filled
    lines = [
        f"- `{run.command}` on {run.date}, commit {run.commit}.",
        f"- {found.described}.",
        f"- {filled.rows:,} requests of {filled.tenants} tenants ({filled.gib:.1f} GiB with indexes), "
        f"{filled.rollups:,} roll-ups of 90 days, {filled.invoices} invoices; filled in {filled.seconds:,.0f} s.",
    ]
    if found.busy_share > 0.1:
        lines.append(
            f"- **The machine was not quiet:** others used {found.busy_share:.0%} of it before the run. Processor time "
            "is what the portal and PostgreSQL used."
        )
    lines += [
        "",
        "| | addresses | p95 in time | by processor time |",
        "| --- | ---: | ---: | ---: |",
        *(_summed(target, run.opened) for target in sorted({each.target_ms or 0 for each in run.opened} - {0})),
        "",
        "The slowest, and each file:",
        "",
        "| who | what | statements | p50, ms | p95, ms | processor p50 | p95 | target |  |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *map(_row, slowest(run.opened)),
    ]
    if run.watched:
        lines += ["", *_live(run.watched)]
    return "\n".join(lines)


def _live(watched: Sequence[Watched]) -> Iterator[str]:
    """Yield the table of live pages: medians of the rounds, for each second."""
    yield "Live pages, for each second (medians of the rounds):"
    yield ""
    yield "| open pages | transactions | portal, ms | PostgreSQL, ms | messages sent | KiB sent |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for what in dict.fromkeys(each.what for each in watched):
        rounds = [each for each in watched if each.what == what]

        def of(name: str, rounds: Sequence[Watched] = rounds) -> float:
            return float(median(getattr(each, name) for each in rounds))

        yield (
            f"| {what} | {of('transactions'):.1f} | {of('portal_cpu_ms'):.0f} | {of('postgres_cpu_ms'):.0f} "
            f"| {of('messages'):.1f} | {of('kib'):,.0f} |"
        )


def slowest(opened: Sequence[Opened], most: int = 30) -> list[Opened]:
    """Return the addresses with a target that took the largest part of it, then those without one."""
    timed = [each for each in opened if each.target_ms is not None]
    timed.sort(key=lambda each: percentile(each.cpu_ms, 95) / (each.target_ms or 1), reverse=True)
    return timed[:most] + [each for each in opened if each.target_ms is None]


def _summed(target_ms: float, opened: Sequence[Opened]) -> str:
    those = [each for each in opened if each.target_ms == target_ms]
    met, alone = (sum(getattr(each, name) for each in those) for name in ("is_met", "is_met_alone"))
    return f"| target {target_ms:,.0f} ms | {len(those)} | {met} | {alone} |"


def _row(each: Opened) -> str:
    ms, cpu = each.ms, each.cpu_ms
    figures = " | ".join(f"{percentile(of, percent):,.0f}" for of in (ms, cpu) for percent in (50, 95))
    target = "" if each.target_ms is None else f"≤ {each.target_ms:,.0f}"
    verdict = (
        "" if not target else "met" if each.is_met else "met by processor time" if each.is_met_alone else "**missed**"
    )
    return f"| {each.who} | {each.what} | {each.statements} | {figures} | {target} | {verdict} |"
