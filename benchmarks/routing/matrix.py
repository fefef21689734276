"""Simulate Hearth and its peers in many settings: ``python -m benchmarks.routing.matrix``.

The settings differ in workload, load, engines, gateway processes, tenants and arrivals. ``--all`` runs every
combination of workloads, loads, engines and gateways. One table says how far Hearth is from the best peer in each.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random

from benchmarks import command
from benchmarks.command import Finding
from benchmarks.errors import NotRun
from benchmarks.routing import measures, workloads
from benchmarks.routing.__main__ import FIRST_SEED, HEARTH, gateways
from benchmarks.routing.measures import Measures
from benchmarks.routing.simulator import STEP_SECONDS, Simulation, engines
from benchmarks.routing.workloads import USUAL_LOAD, USUAL_REPLICAS, Draw

LOADS = (0.5, 0.7, 0.9)
WORKLOADS: dict[str, Draw] = {
    "agents": workloads.agents,
    "hot-prompt": workloads.hot_prompt,
    "shared-prefix": workloads.shared_prefix,
    "prefix-repetition": workloads.prefix_repetition,
    "unique": workloads.unique,
    "short": workloads.short,
    "mixed": workloads.mixed,
    "adversarial": workloads.adversarial,
}
PEERS = ("least-loaded", "cache-aware", "kv-aware", "llm-d", "lmetric")
TIMES = ("p50", "p90", "p99")
#: A difference of half an engine's step is none.
LEVEL_SECONDS = STEP_SECONDS / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one run of every policy has in common."""

    workload: str
    load: float = USUAL_LOAD
    replicas: int = USUAL_REPLICAS
    processes: int = 1
    hosts: int = 1
    #: Of the agents; None: as the workload has them.
    tenants: int | None = None
    is_bursty: bool = False
    trace: Path | None = None

    def name(self) -> str:
        """Return what differs from the usual."""
        parts = [self.workload, f"{self.load:.0%}"]
        if self.replicas != USUAL_REPLICAS:
            parts.append(f"{self.replicas} replicas")
        if self.processes > 1:
            parts.append(f"{self.processes} gateways" + (f" on {self.hosts} hosts" if self.hosts > 1 else ""))
        if self.tenants is not None:
            parts.append("1 tenant" if self.tenants == 1 else f"{self.tenants} tenants")
        if self.is_bursty:
            parts.append("raw arrivals")
        return ", ".join(parts)

    def draw(self) -> Draw:
        """Return what draws its workload."""
        draw = WORKLOADS[self.workload] if self.trace is None else workloads.trace(self.trace)
        if self.tenants is not None:
            draw = partial(workloads.agents, tenants=self.tenants)
        return workloads.in_bursts(draw) if self.is_bursty else draw


def committed() -> Iterator[Setting]:
    """Yield the settings that are published."""
    for workload, load in itertools.product(WORKLOADS, LOADS):
        if workload != "short" or load == USUAL_LOAD:
            yield Setting(workload=workload, load=load)
    for workload, replicas in (("agents", 2), ("agents", 32), ("hot-prompt", 2), ("hot-prompt", 64), ("unique", 64)):
        yield Setting(workload=workload, replicas=replicas)
    for workload, processes, hosts in (
        ("agents", 2, 1),
        ("agents", 4, 1),
        ("agents", 4, 2),
        ("agents", 8, 2),
        ("hot-prompt", 4, 2),
        ("unique", 8, 2),
    ):
        yield Setting(workload=workload, processes=processes, hosts=hosts)
    for tenants in (1, 64):
        yield Setting(workload="agents", tenants=tenants)
    for workload in ("agents", "hot-prompt", "unique"):
        yield Setting(workload=workload, is_bursty=True)


def every() -> Iterator[Setting]:
    """Yield each combination."""
    fleets = itertools.product((2, 8, 32, 64), ((1, 1), (2, 1), (4, 1), (4, 2), (8, 2)), (False, True))
    for (replicas, (processes, hosts), is_bursty), workload, load in itertools.product(fleets, WORKLOADS, LOADS):
        yield Setting(
            workload=workload, load=load, replicas=replicas, processes=processes, hosts=hosts, is_bursty=is_bursty
        )
    for tenants, load in itertools.product((1, 64), LOADS):
        yield Setting(workload="agents", load=load, tenants=tenants)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing.matrix", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every combination: many hours, not published")
    parser.add_argument("--trace", type=Path, help="two more settings: a trace in Mooncake's format, jittered and raw")
    parser.add_argument("--seeds", type=int, default=1, help="runs of which the mean is reported [1]")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="the first of them [101]")
    parser.add_argument("--processes", type=int, default=None, help="runs at the same time [one for each core]")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    shown = [Path(each).name if "/" in each else each for each in arguments]
    asked = f"python -m benchmarks.routing.matrix {' '.join(shown)}".strip()
    return command.conduct("matrix", lambda: _measure(given, asked), publish=not (given.no_publish or given.all))


def simulate(setting: Setting, policy: str, seed: int) -> Measures:
    """Return what one run shows."""
    rate = setting.load / USUAL_LOAD * setting.replicas / USUAL_REPLICAS
    workload = setting.draw()(rate, Random(seed))
    fleet = engines(setting.replicas, workload)
    policies = gateways(policy, fleet, setting.processes, setting.hosts)
    return measures.measure(Simulation(workload, policies, fleet).run(), fleet)


def _measure(given: argparse.Namespace, asked: str) -> Finding:
    settings = list(every() if given.all else committed())
    if given.trace is not None:
        if not given.trace.is_file():
            raise NotRun(f"{given.trace} is not a file")
        settings += [
            Setting(workload=given.trace.stem, trace=given.trace, is_bursty=is_bursty) for is_bursty in (False, True)
        ]
    policies = (HEARTH, *PEERS)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    tasks = list(itertools.product(settings, policies, seeds))
    found: dict[Setting, dict[str, list[Measures]]] = {}
    with ProcessPoolExecutor(given.processes) as pool:
        for (setting, policy, _), measured in zip(tasks, pool.map(simulate, *zip(*tasks, strict=True)), strict=True):
            found.setdefault(setting, {}).setdefault(policy, []).append(measured)
            print(f"{setting.name()}: {policy}", file=sys.stderr, flush=True)
    cells = {
        setting: {policy: measures.mean(each) for policy, each in by_policy.items()}
        for setting, by_policy in found.items()
    }
    date = time.strftime("%Y-%m-%d")
    samples = [
        {"setting": setting.name(), "policies": {policy: asdict(each) for policy, each in by_policy.items()}}
        for setting, by_policy in cells.items()
    ]
    text = "\n".join(_document(cells, asked, date, given.seeds))
    return Finding(date=date, text=text, samples={"command": asked, "cells": samples})


def _document(cells: dict[Setting, dict[str, Measures]], asked: str, date: str, seeds: int) -> Iterator[str]:
    yield f"- `{asked}` on {date}, commit {command.commit()}."
    usual = f"{USUAL_REPLICAS} replicas and one gateway process unless it says otherwise"
    yield f"- Settings: {len(cells)}, each with {usual}; runs of each: {seeds}."
    yield ""
    yield "| setting | p50 | p90 | p99 | good | × least loaded, p90 |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for setting, by_policy in cells.items():
        own = by_policy[HEARTH]
        peers = {policy: each for policy, each in by_policy.items() if policy != HEARTH}
        best = max(peers.values(), key=lambda each: each.good)
        good = f"{own.good - best.good:+.1%}"
        times = " | ".join(_ratio(own, peers, name) for name in TIMES)
        yield f"| {setting.name()} | {times} | {good} | {own.p90 / peers['least-loaded'].p90:.2f} |"


def _ratio(own: Measures, peers: dict[str, Measures], name: str) -> str:
    """Return a time, and its ratio to that of the best peer, which is named when it is ahead."""
    best = min(peers, key=lambda each: float(getattr(peers[each], name)))
    mine, theirs = float(getattr(own, name)), float(getattr(peers[best], name))
    is_ahead = theirs * 1.02 < mine and mine - theirs > LEVEL_SECONDS
    ratio = f"{mine / theirs:.2f}"
    return f"{mine * 1000:,.0f} ({ratio} {best})" if is_ahead else f"{mine * 1000:,.0f} (**{ratio}**)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
