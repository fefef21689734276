"""Hold the simulated engine to real vLLM: ``python -m benchmarks.calibration`` (``make bench-calibration``).

Measures what the steps of vLLM cost, gives a simulated engine the same costs, sends further traces to both in turn, and
compares the times to the first token. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import aiohttp

from benchmarks import command, machine
from benchmarks.calibration import costs, report, trace
from benchmarks.calibration.costs import Costs
from benchmarks.calibration.engines import HEAVIER, Engine, serving
from benchmarks.calibration.report import Replay, Round, Run
from benchmarks.calibration.trace import Request
from benchmarks.command import Finding
from benchmarks.errors import Unfit
from workers.engines import environment
from workers.engines.driver import EngineSpec

LONGEST_ANSWER_SECONDS = 120


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="traces, each sent to both engines (5)")
    parser.add_argument("--requests", type=int, default=60, help="requests of a trace (60)")
    parser.add_argument("--first-seed", type=int, default=101, help="the first trace (101)")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    if min(given.rounds, given.requests) < 1:
        parser.error("--rounds and --requests are at least 1")
    asked = " ".join(["python -m benchmarks.calibration", *arguments])

    def measure() -> Finding:
        run = _run(given, asked)
        return Finding(date=run.date, text=report.document(run), samples=report.as_json(run))

    return command.conduct("calibration", measure, publish=not given.no_publish)


def _run(given: argparse.Namespace, asked: str) -> Run:
    installed = environment.default()
    if installed is None:
        raise Unfit("The engine environment is not installed.", "Run `make engine` first.")
    found = machine.describe(machine.split_cores())
    with (
        tempfile.TemporaryDirectory(prefix="hearth-calibration-") as folder,
        serving("vllm", Path(folder), *HEAVIER) as real,
    ):
        rounds = []
        for number in range(given.rounds):
            rounds.append(_round(real, Path(folder), Random(given.first_seed + number), given.requests))
            print(f"Trace {number + 1} of {given.rounds}: {report.glance(rounds[-1])}", flush=True)
    return Run(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found,
        engine=f"{installed.kind} {installed.vllm_version}",
        requests=given.requests,
        rounds=rounds,
    )


def _round(real: EngineSpec, folder: Path, random: Random, count: int) -> Round:
    """Send one trace to vLLM, and then to a simulated engine whose steps cost what vLLM's cost meanwhile.

    Costs are measured just before and just after vLLM's replay, because on a shared machine they change.
    """
    fitted, requests, real_replay = asyncio.run(_real(real, random, count))
    with serving("simulated", folder, *fitted.arguments()) as simulated:
        simulated_replay = asyncio.run(_simulated(simulated, fitted, requests, random))
    return Round(costs=fitted, real=real_replay, simulated=simulated_replay)


async def _real(spec: EngineSpec, random: Random, count: int) -> tuple[Costs, Sequence[Request], Replay]:
    async with _session() as session:
        engine = Engine(spec, session)
        before = await costs.measure(engine, random)
        requests = trace.draw(random, costs.fit(before), count)
        replay = await _replay(engine, requests)
        return costs.fit(before + await costs.measure(engine, random)), requests, replay


async def _simulated(spec: EngineSpec, fitted: Costs, requests: Sequence[Request], random: Random) -> Replay:
    async with _session() as session:
        engine = Engine(spec, session)
        # It takes as long outside of steps as the real one; its own work is a part of that.
        own = await costs.measure_outside(engine, fitted, random)
        await engine.delay(max(0.0, fitted.outside - own))
        return await _replay(engine, requests)


async def _replay(engine: Engine, requests: Sequence[Request]) -> Replay:
    answers = await trace.replay(engine, requests)
    return Replay(
        first_token_seconds=[answer.first_token_seconds for answer in answers],
        cached_tokens=[answer.cached_tokens for answer in answers],
    )


def _session() -> aiohttp.ClientSession:
    """Return a client that opens a connection for every request: vLLM closes idle ones after 5 s."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=LONGEST_ANSWER_SECONDS),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
