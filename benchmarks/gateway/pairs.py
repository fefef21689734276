"""Throughput with two processes, or for a router with threads on two cores, instead of one."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.errors import NotRun
from benchmarks.gateway import contenders
from benchmarks.gateway.closed_loop import Load
from benchmarks.gateway.contenders import DIRECT, Contender, Up
from benchmarks.gateway.hearth_under_test import Gateways
from benchmarks.gateway.lineup import Lineup, running
from benchmarks.gateway.load import NEW, new_run
from benchmarks.gateway.plan import BUSY_CONNECTIONS, Plan
from benchmarks.gateway.rounds import Sample, sample
from benchmarks.gateway.site import Site

PROCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both processes together, at BUSY_CONNECTIONS."""

    sample: Sample
    memory_bytes: int


def measure(lineup: Lineup, plan: Plan) -> tuple[dict[str, Pair], dict[str, str]]:
    """Start each contender a second time, with two processes, and end it again.

    Returns what was found by name and, by title, why a contender has nothing.
    """
    found: dict[str, Pair] = {}
    lost: dict[str, str] = {}
    for contender, first in lineup.ready:
        if contender.name == DIRECT or (plan.pairs is not None and contender.name not in plan.pairs):
            continue
        print(f"Two processes: {contender.title}", flush=True)
        try:
            found[contender.name] = _take(lineup.site, contender, first, plan)
        except NotRun as error:
            lost[contender.title] = f"{error.problem} (two processes)"
    return found, lost


def _take(site: Site, contender: Contender, first: Up, plan: Plan) -> Pair:
    if first.hearth is None:
        up = contenders.start(contender, site, processes=PROCESSES)
    else:
        up = contenders.more_of_hearth(site, first, Gateways(name="hearth-pair", processes=PROCESSES))
    try:
        with running(up):
            for seconds in filter(None, (plan.warm_up_seconds, plan.seconds)):
                load = Load(traffic=NEW, connections=BUSY_CONNECTIONS, seconds=seconds, run=new_run())
                measured = sample(site, up, load)
            return Pair(sample=measured, memory_bytes=up.memory_bytes())
    finally:
        up.end()
