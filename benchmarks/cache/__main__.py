"""Measure the prediction cache: ``python -m benchmarks.cache`` (``make bench-cache``). See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from benchmarks import command, machine
from benchmarks.cache import peers, report, stages
from benchmarks.cache.plan import FULL, QUICK, Plan
from benchmarks.cache.report import Run
from benchmarks.command import Finding
from benchmarks.gateway import contenders, upstream, workplace
from benchmarks.gateway.contenders import HEARTH, Contender
from benchmarks.gateway.lineup import Lineup, running
from benchmarks.gateway.site import Site
from benchmarks.machine import Machine
from hearth.instance import file_limits

OPEN_FILES = 4_096


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a glance without peers, not published (1.5 minutes)")
    parser.add_argument("--rounds", type=int, help=f"of the hits, {FULL.rounds} by default")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.cache {' '.join(arguments)}".strip()

    def measure() -> Finding:
        plan = QUICK if given.quick else FULL
        run = _run(replace(plan, rounds=given.rounds or plan.rounds), asked)
        return Finding(date=run.date, text=report.document(run), samples=report.as_json(run))

    return command.conduct("cache", measure, publish=not (given.quick or given.no_publish))


def _run(plan: Plan, asked: str) -> Run:
    cores = machine.split_cores()
    machine.require_tools()
    file_limits.allow(OPEN_FILES)
    with ExitStack() as cleanup, machine.kept_on(cores.others):
        folder = cleanup.enter_context(workplace.open_folder())
        found_machine = machine.describe(cores)
        site = upstream.start(Site(folder=folder, cores=cores, cleanup=cleanup))
        lineup = Lineup(site)
        lineup.start(_chosen(plan))
        return _measure(lineup, plan, found_machine, asked)


def _chosen(plan: Plan) -> list[Contender]:
    hearth = next(contender for contender in contenders.everything() if contender.name == HEARTH)
    return [hearth, *(peers.contender(kind) for kind in plan.peers)]


def _measure(lineup: Lineup, plan: Plan, found_machine: Machine, asked: str) -> Run:
    """Take every measurement, in the order of the document."""
    hits = stages.hits(lineup, plan)
    site, up = lineup.site, lineup.find(HEARTH)
    second, skewed, over_quota = None, [], []
    if up is not None and up.hearth is not None:
        with running(up):
            print("Second level", flush=True)
            second = stages.second_level(site, up, plan)
            print("Skew", flush=True)
            skewed = stages.skewed(site, up, plan)
            over_quota = stages.skewed(site, up, plan, up.hearth.keys[stages.SMALL])
    flights = stages.flights(lineup, plan)
    return Run(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found_machine,
        plan=plan,
        titles={contender.name: contender.title for contender in _chosen(plan)},
        not_run=lineup.lost,
        hits=hits,
        second_level=second,
        skewed=skewed,
        over_quota=over_quota,
        flights=flights,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
