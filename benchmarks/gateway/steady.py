"""Latency at a constant rate: the same for every contender, and half of what each can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.contenders import DIRECT, Contender, Up
from benchmarks.gateway.lineup import Lineup
from benchmarks.gateway.load import HITS, NEW, Traffic
from benchmarks.gateway.open_loop import Arrivals, generate
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.rounds import Figures

#: Near its capacity a contender's latency is that of its queue, and beyond it grows with the length of the run.
USABLE_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """One contender at one rate. ``halved``: that is half of its capacity, not one of the common rates."""

    name: str
    traffic: Traffic
    halved: bool
    arrivals: Arrivals
    cpu_us_per_request: float


def measure(lineup: Lineup, found: Mapping[str, Figures], program: Path, limit: int, plan: Plan) -> list[Steady]:
    """Measure every contender at the rates that it and the load generator (up to ``limit``) can do."""
    results: list[Steady] = []

    def take(contender: Contender, up: Up) -> None:
        for traffic, rate, halved in _rates(contender, found[contender.name], limit, plan):
            window = plan.open_window(rate)
            spent = up.cpu_seconds()
            arrivals = generate(program, up.address, traffic, rate=rate, seconds=window)
            cpu_us = (up.cpu_seconds() - spent) * 1e6 / max(1, arrivals.sent)
            results.append(
                Steady(
                    name=contender.name, traffic=traffic, halved=halved, arrivals=arrivals, cpu_us_per_request=cpu_us
                )
            )

    lineup.take_turns("Constant rate", take)
    return results


def _rates(contender: Contender, figures: Figures, limit: int, plan: Plan) -> Iterator[tuple[Traffic, int, bool]]:
    """Yield what to send, how often, and whether that is half of the capacity."""

    def usable(traffic: Traffic) -> list[int]:
        most = min(figures.capacity(traffic) * USABLE_SHARE, limit)
        return [rate for rate in plan.rates if rate <= most]

    for rate in usable(NEW):
        yield NEW, rate, False
    half = int(min(figures.capacity(NEW) / 2, limit))
    if plan.halves and half and contender.name != DIRECT:
        yield NEW, half, True
    for rate in usable(HITS)[-1:]:
        yield HITS, rate, False
