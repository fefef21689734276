"""Measure every page of the portal, and the request log with each filter: ``python -m benchmarks.portal``.

Fills a database of its own with 400 tenants, opens live pages of 1 and of 50 viewers, and opens each address that the
portal has, as an operator and as members.
See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

import psycopg

from benchmarks import command, database, machine
from benchmarks.command import Finding
from benchmarks.gateway import workplace
from benchmarks.portal import live, report
from benchmarks.portal.report import Filled, Opened, Run, Watched

#: What fills the database and opens its pages.
STEPS = "benchmarks.portal.steps"

ROWS = 1_200_000


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.portal", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="requests that are kept one by one")
    parser.add_argument("--repeats", type=int, default=20, help="of each address")
    parser.add_argument("--only", default="", help="a regular expression for who and what, such as 'owner requests'")
    parser.add_argument("--live-seconds", type=float, default=30, help="each stage of live pages; 0: none")
    parser.add_argument("--live-rounds", type=int, default=2, help="of these stages")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.portal {' '.join(arguments)}".strip()

    def measure() -> Finding:
        run = _run(given, asked)
        return Finding(date=run.date, text=report.document(run), samples=asdict(run))

    return command.conduct("portal", measure, publish=not given.no_publish)


def _run(given: argparse.Namespace, asked: str) -> Run:
    cores = machine.split_cores()
    found = machine.describe(cores)
    with workplace.open_folder() as folder, database.running(folder) as instance:
        redis = instance.redis()
        assert redis is not None, "it has no address of its own"
        redis.start()  # stopped with the database
        filled = Filled(**database.run_step(instance, STEPS, "fill", str(given.rows))[-1])
        # As autovacuum does within a minute or two of a table's growth. Only the owner may.
        with psycopg.connect(instance.owner_url(), autocommit=True) as owner:
            owner.execute("VACUUM ANALYZE")
        watched: list[Watched] = []
        if given.live_seconds > 0:
            rounds, seconds = given.live_rounds, given.live_seconds
            watched += live.watched(instance, folder, cores, seconds=seconds, rounds=rounds)
        steps = database.run_step(instance, STEPS, "walk", str(given.repeats), given.only)
        opened = [Opened(**each) for each in steps]
    return Run(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found,
        filled=filled,
        opened=opened,
        watched=watched,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
