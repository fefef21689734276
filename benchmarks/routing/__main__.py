"""Simulate routing policies over the same engines and requests: ``python -m benchmarks.routing``.

Hearth's own routing code runs beside policies of other routers, made after their descriptions. Every run is drawn from
a seed, so the same command gives the same figures on every machine. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from benchmarks import command
from benchmarks.command import Finding
from benchmarks.errors import BenchError, NotRun
from benchmarks.routing import hearth_policy, measures, policies, report, workloads
from benchmarks.routing.report import Cell
from benchmarks.routing.simulator import Engine, Policy, Simulation, engines
from benchmarks.routing.workloads import USUAL_LOAD, USUAL_REPLICAS, Draw

WORKLOADS: dict[str, Draw] = {
    "agents": workloads.agents,
    "hot-prompt": workloads.hot_prompt,
    "shared-prefix": workloads.shared_prefix,
    "unique": workloads.unique,
    "mixed": workloads.mixed,
}
POLICIES: dict[str, Callable[[Sequence[Engine]], Policy]] = {
    "round-robin": policies.RoundRobin,
    "least-loaded": policies.LeastLoaded,
    "session-hash": policies.SessionHash,
    "longest-prefix": policies.LongestPrefix,
    "cache-aware": policies.CacheAware,
    "kv-aware": policies.KvAware,
    "llm-d": policies.LlmD,
    "lmetric": policies.LMetric,
    "dynamo": policies.Dynamo,
}
HEARTH = "hearth"
#: The same, if no session ever left its home; and if it saw what each engine holds.
HEARTH_STRICT = "hearth-strict"
HEARTH_EXACT = "hearth-exact"
HEARTHS = (HEARTH, HEARTH_STRICT, HEARTH_EXACT)
SEEDS = 5
#: Seeds with which the routing code was tuned are left out of what is reported.
FIRST_SEED = 101


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run."""

    workload: str
    trace: Path | None
    policy: str
    gateways: int
    hosts: int
    replicas: int
    load: float
    seed: int


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--workload", nargs="+", choices=sorted(WORKLOADS), help="these workloads [all]")
    parser.add_argument("--policy", nargs="+", choices=[*sorted(POLICIES), *HEARTHS], help="these policies [all]")
    parser.add_argument("--trace", type=Path, help="a further workload: a trace in Mooncake's format")
    parser.add_argument("--load", type=float, nargs="+", default=[USUAL_LOAD], help="share of the engines' time [0.7]")
    parser.add_argument("--replicas", type=int, default=USUAL_REPLICAS, help="engines [8]")
    parser.add_argument("--gateways", type=int, default=1, help="gateway processes [1]")
    parser.add_argument("--hosts", type=int, default=1, help="hosts on which they run [1]")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of which the mean is reported [5]")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="the first of them [101]")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.routing {' '.join(_shown(arguments))}".strip()
    return command.conduct("routing", lambda: _measure(given, asked), publish=not given.no_publish)


def _measure(given: argparse.Namespace, asked: str) -> Finding:
    names = list(given.workload or WORKLOADS)
    if given.trace is not None:
        if not given.trace.is_file():
            raise NotRun(f"{given.trace} is not a file")
        names.append(given.trace.stem)
    tasks = [
        Task(
            workload=name,
            trace=given.trace if name not in WORKLOADS else None,
            policy=policy,
            gateways=given.gateways,
            hosts=given.hosts,
            replicas=given.replicas,
            load=load,
            seed=given.first_seed + number,
        )
        for name in names
        for load in given.load
        for policy in given.policy or [*POLICIES, *HEARTHS]
        for number in range(given.seeds)
    ]
    found: dict[tuple[str, float, str], list[measures.Measures]] = {}
    ideals: dict[tuple[str, float], list[float]] = {}
    with ProcessPoolExecutor() as pool:
        for task, (measured, ideal) in zip(tasks, pool.map(simulate, tasks), strict=True):
            found.setdefault((task.workload, task.load, task.policy), []).append(measured)
            ideals.setdefault((task.workload, task.load), []).append(ideal)
    cells = [
        Cell(
            workload=workload,
            load=load,
            policy=policy,
            measures=measures.mean(runs),
            ideal_hit=sum(ideals[workload, load]) / len(ideals[workload, load]),
        )
        for (workload, load, policy), runs in found.items()
    ]
    date = time.strftime("%Y-%m-%d")
    text = report.document(
        cells,
        asked=asked,
        date=date,
        commit=command.commit(),
        replicas=given.replicas,
        gateways=given.gateways,
        seeds=given.seeds,
    )
    return Finding(date=date, text=text, samples={"command": asked, "cells": [asdict(cell) for cell in cells]})


def simulate(task: Task) -> tuple[measures.Measures, float]:
    """Run one simulation; return what it shows and the ideal hit rate. Raises BenchError."""
    draw = WORKLOADS[task.workload] if task.trace is None else workloads.trace(task.trace)
    rate = task.load / USUAL_LOAD * task.replicas / USUAL_REPLICAS
    workload = draw(rate, Random(task.seed))
    fleet = engines(task.replicas, workload)
    requests = Simulation(workload, gateways(task.policy, fleet, task.gateways, task.hosts), fleet).run()
    if not requests:
        raise BenchError(f"{task.workload} has no requests")
    return measures.measure(requests, fleet), measures.ideal_hit(requests, workload.block_size)


def gateways(policy: str, fleet: Sequence[Engine], count: int, hosts: int) -> Sequence[Policy]:
    """Return ``count`` gateway processes with the named policy; only those of Hearth exchange what they know."""
    if policy in HEARTHS:
        kind = hearth_policy.Exact if policy == HEARTH_EXACT else hearth_policy.Hearth
        return hearth_policy.gateways(fleet, count, hosts, kind, strict=policy == HEARTH_STRICT)
    return [POLICIES[policy](fleet) for _ in range(count)]


def _shown(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the folders of a trace."""
    return [Path(each).name if "/" in each else each for each in arguments]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
