"""Simulate what a flood of one tenant costs the others: ``python -m benchmarks.routing.fairness``.

Four tenants send half of what the engines can answer; a fifth then sends three times as much as they can. The
first four's times to the first token are compared: without the flood, with it, and with it behind Hearth's fair queue.
Then two tenants flood several gateway processes, one of them through a single process: what is its share?
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random
from statistics import fmean

from benchmarks import command
from benchmarks.command import Finding
from benchmarks.routing import hearth_policy, workloads
from benchmarks.routing.__main__ import FIRST_SEED, SEEDS
from benchmarks.routing.fair_policy import FairHearth, Unshared, Untold
from benchmarks.routing.hearth_policy import Hearth
from benchmarks.routing.measures import percentile
from benchmarks.routing.simulator import Request, Simulation, engines
from benchmarks.routing.workloads import USUAL_LOAD, USUAL_REPLICAS, Draw
from routing.fair_queue import OUTPUT_WEIGHT

PERCENTS = (50, 90, 99)
#: Share of the engines' capacity that the four quiet tenants use together.
LOAD = 0.5
#: Gateway processes through which a tenant sends more than through one.
PROCESSES = 4
#: Replicas where these processes are on two hosts: fewer, so that each host has to divide what it gets.
REPLICAS_OF_HOSTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to serve one workload."""

    name: str
    draw: Draw
    is_fair: bool


CASES = (
    Case(name="no flood", draw=workloads.quiet, is_fair=False),
    Case(name="no flood, fair queue", draw=workloads.quiet, is_fair=True),
    Case(name="flood, engines' own queues", draw=workloads.flood, is_fair=False),
    Case(name="flood, fair queue", draw=workloads.flood, is_fair=True),
)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing.fairness", description=__doc__)
    parser.add_argument("--replicas", type=int, default=USUAL_REPLICAS, help="engines [8]")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of which the mean is reported [5]")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="the first of them [101]")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.routing.fairness {' '.join(arguments)}".strip()
    return command.conduct("fairness", lambda: _measure(given, asked), publish=not given.no_publish)


def simulate(case: Case, replicas: int, seed: int) -> list[float]:
    """Return the percentiles of the first four tenants' times to the first token, in seconds."""
    workload = case.draw(LOAD / USUAL_LOAD * replicas / USUAL_REPLICAS, Random(seed))
    fleet = engines(replicas, workload)
    policies = hearth_policy.gateways(fleet, 1, 1, FairHearth if case.is_fair else Hearth)
    requests = Simulation(workload, policies, fleet).run()
    times = sorted(each.ttft for each in requests if each.conversation.tenant)
    return [percentile(times, percent) for percent in PERCENTS]


def share(requests: Sequence[Request]) -> float:
    """Return which part of the work was done for the first tenant, until all requests of one of the two had begun."""
    until = min(max(each.first_token_at for each in requests if each.conversation.tenant == of) for of in (0, 1))
    work = [0.0, 0.0]
    for each in requests:
        if each.first_token_at <= until:
            computed = each.turn.prompt_tokens - each.cached_tokens
            work[each.conversation.tenant] += computed + OUTPUT_WEIGHT * each.turn.output_tokens
    return work[0] / sum(work)


def simulate_share(kind: type[FairHearth], replicas: int, hosts: int, seed: int) -> float:
    """Return the share of a tenant that floods one process, beside one that floods all of them as much."""
    workload = workloads.two_floods(replicas / USUAL_REPLICAS, Random(seed))
    fleet = engines(replicas, workload)
    return share(Simulation(workload, hearth_policy.gateways(fleet, PROCESSES, hosts, kind), fleet).run())


def _measure(given: argparse.Namespace, asked: str) -> Finding:
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    tasks = [(case, given.replicas, seed) for case in CASES for seed in seeds]
    with ProcessPoolExecutor() as pool:
        runs = list(pool.map(simulate, *zip(*tasks, strict=True)))
        settings = [(FairHearth, given.replicas, 1), (Unshared, given.replicas, 1)]
        settings += [(FairHearth, REPLICAS_OF_HOSTS, 2), (Untold, REPLICAS_OF_HOSTS, 2)]
        shares = [
            fmean(pool.map(simulate_share, *zip(*((*setting, seed) for seed in seeds), strict=True)))
            for setting in settings
        ]
    found = {
        case.name: [fmean(run[at] for run in runs[number * len(seeds) : (number + 1) * len(seeds)]) for at in range(3)]
        for number, case in enumerate(CASES)
    }
    calm = found[CASES[0].name]
    lines = [
        f"- `{asked}` on {(date := time.strftime('%Y-%m-%d'))}, commit {command.commit()}.",
        f"- {given.replicas} simulated engines, means of {given.seeds} seeds. Times to the first token of the four "
        "tenants, in milliseconds, and compared with those without the flood.",
        "",
        "| | p50 | p90 | p99 |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, times in found.items():
        cells = [f"{each * 1000:,.0f} ({each / base - 1:+.0%})" for each, base in zip(times, calm, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Two tenants flood {PROCESSES} gateway processes of one host alike, but one of them only through one process. "
        f"It gets {shares[0]:.0%} of the work; {shares[1]:.0%} if each process counts for itself. With "
        f"{REPLICAS_OF_HOSTS} engines and the processes on two hosts it gets {shares[2]:.0%}; {shares[3]:.0%} if hosts "
        "tell each other nothing of what they charged.",
    ]
    return Finding(date=date, text="\n".join(lines), samples={"command": asked, "seconds": found, "shares": shares})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
