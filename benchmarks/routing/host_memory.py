"""Simulate engines that keep in host memory what their caches evict: ``python -m benchmarks.routing.host_memory``.

Hearth, which adds the time of reloading to a replica's cost, runs beside the same that takes what is in host memory for
evicted, the same that takes it for cached, and the same that sees each engine's cache and host memory exactly.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from random import Random

from benchmarks import command
from benchmarks.command import Finding
from benchmarks.routing import hearth_policy, measures, policies, workloads
from benchmarks.routing.__main__ import FIRST_SEED, SEEDS
from benchmarks.routing.hearth_policy import Hearth
from benchmarks.routing.measures import Measures
from benchmarks.routing.simulator import HostMemory, Simulation, engines
from benchmarks.routing.workloads import USUAL_LOAD, USUAL_REPLICAS

#: An engine's cache as a share of that of the other comparisons: sessions must be evicted while they think.
CACHE_SHARE = 0.4
#: Host memory, as a multiple of the cache.
FACTOR = 4.0
#: Tokens a second from host memory: 128 KiB each at 25 GB a second (``routing.replicas.reload_speed``), and a tenth of
#: that, as with larger keys and values, slower lanes, or engines that share them. Engines compute 6,000.
SPEEDS = (190_000.0, 19_000.0)
HEARTHS: dict[str, type[Hearth]] = {
    "hearth": hearth_policy.Hearth,
    "host memory as evicted": hearth_policy.HostEvicted,
    "host memory as cached": hearth_policy.HostCached,
    "hearth-exact": hearth_policy.Exact,
}
LEAST_LOADED = "least-loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run."""

    policy: str
    host: HostMemory
    share: float
    load: float
    gateways: int
    hosts: int
    seed: int


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing.host_memory", description=__doc__)
    parser.add_argument("--factor", type=float, default=FACTOR, help="host memory, as a multiple of the cache [4]")
    parser.add_argument("--cache-share", type=float, default=CACHE_SHARE, help="the cache, as a share of usual [0.4]")
    parser.add_argument("--speed", type=float, nargs="+", default=list(SPEEDS), help="tokens reloaded in a second")
    parser.add_argument("--load", type=float, default=USUAL_LOAD, help="share of the engines' time [0.7]")
    parser.add_argument("--gateways", type=int, default=1, help="gateway processes [1]")
    parser.add_argument("--hosts", type=int, default=1, help="hosts on which they run [1]")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of which the mean is reported [5]")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="the first of them [101]")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.routing.host_memory {' '.join(arguments)}".strip()
    return command.conduct("host-memory", lambda: _measure(given, asked), publish=not given.no_publish)


def simulate(task: Task) -> tuple[Measures, float]:
    """Run one simulation of agents; return what it shows, and which share of the prompt tokens was reloaded."""
    workload = workloads.agents(task.load / USUAL_LOAD, Random(task.seed))
    workload = replace(workload, cache_blocks=int(workload.cache_blocks * task.share))
    fleet = engines(USUAL_REPLICAS, workload, task.host)
    if task.policy == LEAST_LOADED:
        requests = Simulation(workload, [policies.LeastLoaded(fleet) for _ in range(task.gateways)], fleet).run()
    else:
        gateways = hearth_policy.gateways(fleet, task.gateways, task.hosts, HEARTHS[task.policy])
        requests = Simulation(workload, gateways, fleet).run()
    reloaded = sum(each.reloaded_tokens for each in requests) / sum(each.turn.prompt_tokens for each in requests)
    return measures.measure(requests, fleet), reloaded


def _measure(given: argparse.Namespace, asked: str) -> Finding:
    tasks = [
        Task(
            policy=policy,
            host=HostMemory(factor=given.factor, tokens_per_second=speed),
            share=given.cache_share,
            load=given.load,
            gateways=given.gateways,
            hosts=given.hosts,
            seed=given.first_seed + number,
        )
        for speed in given.speed
        for policy in (*HEARTHS, LEAST_LOADED)
        for number in range(given.seeds)
    ]
    with ProcessPoolExecutor() as pool:
        runs = list(zip(tasks, pool.map(simulate, tasks), strict=True))
    cells = [
        (speed, policy, [found for _, found in group])
        for (speed, policy), group in itertools.groupby(
            runs, key=lambda each: (each[0].host.tokens_per_second, each[0].policy)
        )
    ]
    date = time.strftime("%Y-%m-%d")
    lines = [
        f"- `{asked}` on {date}, commit {command.commit()}.",
        f"- *agents*, load {given.load:.0%}, {USUAL_REPLICAS} simulated engines, gateway processes: {given.gateways}, "
        f"means of {given.seeds} seeds.",
        f"- Each cache is {given.cache_share:.0%} of that of the other comparisons, and host memory {given.factor:g} "
        "times as large. Times are to the first token, in milliseconds.",
        "",
        "| tokens reloaded in a second | policy | p50 | p90 | p99 | hit tokens | of them reloaded | turns that stay |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *_rows(cells),
    ]
    samples = [
        {"speed": speed, "policy": policy, "runs": [asdict(each) | {"reloaded": share} for each, share in found]}
        for speed, policy, found in cells
    ]
    return Finding(date=date, text="\n".join(lines), samples={"command": asked, "cells": samples})


def _rows(cells: Sequence[tuple[float, str, Sequence[tuple[Measures, float]]]]) -> Iterator[str]:
    for speed, policy, found in cells:
        mean = measures.mean([each for each, _ in found])
        reloaded = sum(share for _, share in found) / len(found) / mean.hit
        times = " | ".join(f"{seconds * 1000:,.0f}" for seconds in (mean.p50, mean.p90, mean.p99))
        yield f"| {speed:,.0f} | {policy} | {times} | {mean.hit:.1%} | {reloaded:.1%} | {mean.stay or 0:.1%} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
