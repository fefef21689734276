"""Measure how fast usage is stored: ``python -m benchmarks.drain`` (``make bench-drain``). See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks import command, database, machine
from benchmarks.command import Finding
from benchmarks.drain import report
from benchmarks.drain.report import Drained, Run
from benchmarks.errors import NotRun
from benchmarks.gateway import workplace
from benchmarks.machine import Cores
from hearth.instance.instance import Instance

#: Tenants of each round.
TENANTS = (1, 40, 400)
RECORDS = 200_000


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drain", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS, help="usage records of each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each number of tenants; the median is told")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.drain {' '.join(arguments)}".strip()

    def measure() -> Finding:
        run = _run(given.records, given.rounds, asked)
        return Finding(date=run.date, text=report.document(run), samples=asdict(run))

    return command.conduct("drain", measure, publish=not given.no_publish)


def _run(records: int, rounds: int, asked: str) -> Run:
    cores = machine.split_cores()
    with machine.kept_on(cores.others), workplace.open_folder() as folder:
        found = machine.describe(cores)
        with database.running(folder) as instance:
            drained = [_round(instance, cores, tenants, records) for _ in range(rounds) for tenants in TENANTS]
    return Run(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found,
        records=records,
        rounds=rounds,
        drained=drained,
    )


def _round(instance: Instance, cores: Cores, tenants: int, records: int) -> Drained:
    """Write a log, then have it drained by a process alone on its core."""
    print(f"{records:,} records of {tenants} tenants", flush=True)
    _step(instance, cores.others, "log", str(tenants), str(records))
    told = json.loads(_step(instance, (cores.contender,), "drain").splitlines()[-1])
    return Drained(tenants=tenants, **told)


def _step(instance: Instance, cores: Sequence[int], *arguments: str) -> str:
    with machine.kept_on(cores):
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.drain.rounds", *arguments],
            env=instance.environment("drain"),
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode != 0:
        raise NotRun("a log could not be written or drained", ran.stderr)
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
