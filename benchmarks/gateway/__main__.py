"""Measure what a gateway costs: ``python -m benchmarks.gateway`` (``make bench-gateway``). See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from benchmarks import command, machine
from benchmarks.command import Finding
from benchmarks.gateway import (
    contenders,
    decision,
    findings,
    idle,
    ladder,
    open_loop,
    pairs,
    report,
    rounds,
    steady,
    upstream,
    workplace,
)
from benchmarks.gateway.contenders import HEARTH
from benchmarks.gateway.findings import Run
from benchmarks.gateway.lineup import Lineup, running
from benchmarks.gateway.load import NEW, Address
from benchmarks.gateway.plan import FULL, QUICK, Plan
from benchmarks.gateway.site import Site
from benchmarks.gateway.upstream import MODEL
from benchmarks.machine import Cores
from hearth.instance import file_limits

#: Left out of a glance: the first for the half minute that it takes, the second because it is much like its sister.
UNHURRIED = ("litellm", "vllm-router")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for."""

    plan: Plan
    only: tuple[str, ...]
    publish: bool
    asked: str


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    options = _parse(arguments)

    def measure() -> Finding:
        run = _run(options)
        return Finding(date=run.date, text=report.document(run), samples=findings.as_json(run))

    return command.conduct("gateway", measure, publish=options.publish)


def _parse(arguments: Sequence[str]) -> Options:
    names = [contender.name for contender in contenders.everything()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help=f"a glance without {' and '.join(UNHURRIED)}, not published (1.5 minutes)"
    )
    parser.add_argument("--rounds", type=int, help=f"rounds of the closed loop ({FULL.rounds})")
    parser.add_argument("--seconds", type=int, help=f"length of one measurement there ({FULL.seconds})")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    if (given.rounds or 1) < 1 or (given.seconds or 1) < 1:
        parser.error("--rounds and --seconds are at least 1")
    plan = QUICK if given.quick else FULL
    plan = replace(plan, rounds=given.rounds or plan.rounds, seconds=given.seconds or plan.seconds)
    usual = [name for name in names if not (given.quick and name in UNHURRIED)]
    return Options(
        plan=plan,
        only=tuple(given.only or usual),
        publish=not (given.no_publish or given.quick),
        asked=f"python -m benchmarks.gateway {' '.join(arguments)}".strip(),
    )


def _run(options: Options) -> Run:
    cores = machine.split_cores()
    machine.require_tools()
    file_limits.allow(max(open_loop.MAX_CONNECTIONS, options.plan.idle_streams))  # what is started inherits it
    began = time.monotonic()
    with ExitStack() as cleanup, machine.kept_on(cores.others):
        folder = cleanup.enter_context(workplace.open_folder())
        found_machine = machine.describe(cores)
        site = upstream.start(Site(folder=folder, cores=cores, cleanup=cleanup))
        lineup = Lineup(site)
        lineup.start([contender for contender in contenders.everything() if contender.name in options.only])
        found = _measure(lineup, options, found_machine, cores)
    return replace(found, minutes=(time.monotonic() - began) / 60)


def _measure(lineup: Lineup, options: Options, found_machine: machine.Machine, cores: Cores) -> Run:
    """Take every measurement, in the order of the document."""
    plan, site = options.plan, lineup.site
    program = open_loop.build(site.folder)
    limit = open_loop.limit(program, Address(port=site.upstream_port, api_key="none", model=MODEL), NEW)
    print(f"The open-loop generator is punctual up to {limit:,} requests/s", flush=True)
    figures = rounds.measure(lineup, plan)
    recorded, records = _settle(lineup, figures)
    rounds.measure_larger(lineup, figures, plan)
    constant = steady.measure(lineup, figures, program, limit, plan)
    idle_streams = idle.measure(lineup, plan)
    two, not_paired = pairs.measure(lineup, plan)
    steps, not_climbed = ladder.measure(lineup, plan)
    up = {contender.name for contender, _ in lineup.ready}
    return Run(
        command=options.asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found_machine,
        plan=plan,
        minutes=0.0,
        load_generator=" ".join(command.output("wrk", "-v").split()[:2]),
        open_loop_limit=limit,
        second_core_is_shared=cores.second_is_shared,
        figures={name: each for name, each in figures.items() if name in up},
        steady=[each for each in constant if each.name in up],
        idle=idle_streams,
        pairs=two,
        ladder=steps,
        decision_us=decision.median_us(cores),
        not_run=lineup.lost | not_paired | not_climbed,
        usage_records=records,
        requests_recorded=recorded,
    )


def _settle(lineup: Lineup, figures: dict[str, rounds.Figures]) -> tuple[int, int | None]:
    """Let Hearth's drain finish; return how many requests it answered so far, and its usage records if it runs."""
    up = lineup.find(HEARTH)
    if up is None or up.hearth is None:
        return 0, None
    print("Waiting for the drain", flush=True)
    with running(up):
        return figures[HEARTH].requests(), up.hearth.usage_records()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
