"""Simulate a replica that comes back with an empty cache: ``python -m benchmarks.routing.restart``.

One of eight engines gets no request for ten seconds and is then back. Its share of what is sent, runs and is computed
is compared with an eighth, and the time to the first token with that of the same requests without a restart.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from statistics import fmean

from benchmarks import command
from benchmarks.command import Finding
from benchmarks.routing import workloads
from benchmarks.routing.__main__ import FIRST_SEED, HEARTH, gateways
from benchmarks.routing.measures import percentile
from benchmarks.routing.simulator import Request, Restart, Simulation, engines
from benchmarks.routing.workloads import USUAL_REPLICAS, Draw

WORKLOADS: dict[str, Draw] = {"agents": workloads.agents, "hot-prompt": partial(workloads.hot_prompt, requests=6000)}
POLICIES = (HEARTH, "least-loaded", "llm-d")
RESTART = Restart(replica=0, at=40.0, back_at=50.0)
#: Seconds over which a share is taken. Such a window begins every second.
WINDOW_SECONDS = 5
#: How long the replica is watched, and from which part of an equal share on it carries its share.
WATCHED_SECONDS = 40
ENOUGH = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One policy on one workload: seconds until the replica carries its share, None if that is not watched."""

    workload: str
    policy: str
    #: Its share of the requests sent, of the requests that run, and of the prompt tokens computed.
    sent: float | None
    running: float | None
    work: float | None
    #: Time to the first token, seconds, of requests sent while the replica is watched; and the same without a restart.
    p90: float
    calm_p90: float


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing.restart", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of which the mean is reported [3]")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="the first of them [101]")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.routing.restart {' '.join(arguments)}".strip()
    return command.conduct("restart", lambda: _measure(given, asked), publish=not given.no_publish)


def recovery(workload: str, policy: str, seeds: Sequence[int]) -> Recovery:
    """Return the mean of the runs with these seeds."""
    runs = [_run(workload, policy, seed, RESTART) for seed in seeds]
    calm = [_run(workload, policy, seed, None) for seed in seeds]
    return Recovery(
        workload=workload,
        policy=policy,
        sent=_seconds(runs, _sent),
        running=_seconds(runs, _running),
        work=_seconds(runs, _work),
        p90=fmean(_p90(requests, back_at) for requests, back_at in runs),
        calm_p90=fmean(_p90(requests, back_at) for requests, back_at in calm),
    )


def _run(workload: str, policy: str, seed: int, restart: Restart | None) -> tuple[list[Request], float]:
    """Return the requests of one run, and when the replica was back."""
    drawn = WORKLOADS[workload](1.0, Random(seed))
    fleet = engines(USUAL_REPLICAS, drawn)
    simulation = Simulation(drawn, gateways(policy, fleet, 1, 1), fleet, restart=restart)
    return simulation.run(), simulation.back_at or RESTART.back_at


Amount = Callable[[Request, float, float], float]


def _seconds(runs: Sequence[tuple[list[Request], float]], amount: Amount) -> float | None:
    """Return after how many seconds a window ends in which the replica carries its share, or None."""
    for began in range(WATCHED_SECONDS - WINDOW_SECONDS + 1):
        shares = [_share(requests, back_at + began, amount) for requests, back_at in runs]
        if fmean(shares) * USUAL_REPLICAS >= ENOUGH:
            return began + WINDOW_SECONDS
    return None


def _share(requests: Sequence[Request], begin: float, amount: Amount) -> float:
    end = begin + WINDOW_SECONDS
    every = sum(amount(each, begin, end) for each in requests)
    own = sum(amount(each, begin, end) for each in requests if each.replica == RESTART.replica)
    return own / every if every else 0.0


def _sent(request: Request, begin: float, end: float) -> float:
    return float(begin <= request.sent_at < end)


def _running(request: Request, begin: float, end: float) -> float:
    return max(0.0, min(end, request.ended_at) - max(begin, request.sent_at))


def _work(request: Request, begin: float, end: float) -> float:
    """Return the prompt tokens that a request's engine computed, in the window in which its answer began."""
    began = begin <= request.first_token_at < end
    return float(request.turn.prompt_tokens - request.cached_tokens) if began else 0.0


def _p90(requests: Sequence[Request], back_at: float) -> float:
    return percentile(sorted(each.ttft for each in requests if back_at <= each.sent_at < back_at + WATCHED_SECONDS), 90)


def _measure(given: argparse.Namespace, asked: str) -> Finding:
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    found = [recovery(workload, policy, seeds) for workload in WORKLOADS for policy in POLICIES]
    lines = [
        f"- `{asked}` on {(date := time.strftime('%Y-%m-%d'))}, commit {command.commit()}.",
        f"- {USUAL_REPLICAS} simulated engines, means of {given.seeds} seeds.",
        "",
        "| workload | policy | of requests sent | of requests that run | of prompt tokens computed | p90 after it "
        "| p90 without a restart |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        *map(_row, found),
    ]
    return Finding(
        date=date, text="\n".join(lines), samples={"command": asked, "found": [asdict(each) for each in found]}
    )


def _row(each: Recovery) -> str:
    seconds = (f"{at:.0f} s" if at is not None else "not in 40 s" for at in (each.sent, each.running, each.work))
    times = f"{each.p90 * 1000:,.0f} ms | {each.calm_p90 * 1000:,.0f} ms"
    return f"| {each.workload} | {each.policy} | {' | '.join(seconds)} | {times} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
