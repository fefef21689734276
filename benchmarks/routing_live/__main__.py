"""Compare routers over HTTP in front of the same simulated engines: ``python -m benchmarks.routing_live``.

Every router gets the same requests at the same times, one router after another, and engines whose caches are empty.
See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import command, machine
from benchmarks.command import Finding
from benchmarks.errors import NotRun
from benchmarks.gateway import workplace
from benchmarks.gateway.site import Site
from benchmarks.routing.workloads import USUAL_LOAD, USUAL_REPLICAS
from benchmarks.routing_live import contenders, engines, report, rounds, workloads
from benchmarks.routing_live.report import Cell, Comparison
from benchmarks.routing_live.rounds import Outcome
from benchmarks.routing_live.stage import Contender, Stage
from hearth.instance import file_limits

USUAL_WORKLOADS = ("agents", "hot-prompt", "unique")
#: What two cores can compute beside the routers.
SLOWDOWN = 2.0
FIRST_SEED = 101
CONNECTIONS = 8192


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    routers = contenders.everything()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_live", description=__doc__)
    parser.add_argument("--workload", nargs="+", choices=sorted(workloads.DRAWS), help=f"{', '.join(USUAL_WORKLOADS)}")
    parser.add_argument("--trace", type=Path, help="a further workload: a trace in Mooncake's format")
    parser.add_argument("--router", nargs="+", choices=list(routers), help="these routers [all]")
    parser.add_argument("--seconds", type=float, help="in which each workload's requests are sent [25 to 90]")
    parser.add_argument("--rounds", type=int, default=1, help="of which the mean is reported, each with its seed [1]")
    parser.add_argument("--load", type=float, default=USUAL_LOAD, help="share of the engines' capacity [0.7]")
    parser.add_argument("--replicas", type=int, default=USUAL_REPLICAS, help="engines [8]")
    parser.add_argument(
        "--slowdown", type=float, default=SLOWDOWN, help="of engines and requests, for less work here [2]"
    )
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of the first round [101]")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    shown = [Path(each).name if "/" in each else each for each in arguments]
    asked = f"python -m benchmarks.routing_live {' '.join(shown)}".strip()

    def measure() -> Finding:
        chosen = [routers[name] for name in given.router or routers]
        found = _measure(given, chosen, asked)
        return Finding(date=found.date, text=report.document(found), samples=report.samples(found))

    return command.conduct("routing-live", measure, publish=not given.no_publish)


def _measure(given: argparse.Namespace, chosen: Sequence[Contender], asked: str) -> Comparison:
    names = list(given.workload or (() if given.trace else USUAL_WORKLOADS))
    if given.trace is not None:
        if not given.trace.is_file():
            raise NotRun(f"{given.trace} is not a file")
        names.append(given.trace.stem)
    file_limits.allow(CONNECTIONS)
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    lost: dict[str, str] = {}
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(workplace.open_folder())
        cores = machine.split_cores()
        found = machine.describe(cores)
        stage = Stage(site=Site(folder=folder, cores=cores, cleanup=cleanup))
        for number in range(given.rounds):
            for name in names:
                workload = workloads.draw(
                    name,
                    given.trace,
                    load=given.load,
                    replicas=given.replicas,
                    slowdown=given.slowdown,
                    seed=given.first_seed + number,
                )
                seconds = given.seconds or workloads.SECONDS.get(name, workloads.TRACE_SECONDS)
                stage.cache_tokens = engines.cache_tokens(workload)
                stage.engines = engines.start(stage.site, workload, given.replicas, given.slowdown)
                for contender in chosen:
                    if contender.title in lost:
                        continue
                    print(f"Round {number + 1}, {name}: {contender.title}", flush=True)
                    try:
                        outcome = rounds.run(stage, contender, workload, seconds)
                    except NotRun as error:
                        lost[contender.title] = error.problem
                        print(f"{contender.title}: {error}", file=sys.stderr, flush=True)
                        continue
                    outcomes.setdefault((name, contender.title), []).append(outcome)
                engines.end(stage.engines)
    return Comparison(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found,
        replicas=given.replicas,
        load=given.load,
        rounds=given.rounds,
        slowdown=given.slowdown,
        cells=[
            Cell(workload=workload, router=router, outcome=rounds.mean(each))
            for (workload, router), each in outcomes.items()
        ],
        lost=lost,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
