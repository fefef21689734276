"""Measure pages, the API, closing and reconciliation over much usage: ``python -m benchmarks.usage``.

Fills a database of its own with requests of six days and roll-ups of ninety, then asks as people do. See
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict

import psycopg

from benchmarks import command, database, machine
from benchmarks.command import Finding
from benchmarks.errors import Unfit
from benchmarks.gateway import workplace
from benchmarks.usage import report
from benchmarks.usage.report import Asked, Filled, Run

#: What fills the database and asks it.
STEPS = "benchmarks.usage.steps"

ROWS = 50_000_000
#: Of a request on the disk: its row, two indexes, its place in a posting, and the server's log of all of it.
BYTES_PER_ROW = 900


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.usage", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="requests of the six days together")
    parser.add_argument(
        "--repeats", type=int, default=5, help="of each question, after a first one that is not counted"
    )
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.usage {' '.join(arguments)}".strip()

    def measure() -> Finding:
        run = _run(given.rows, given.repeats, asked)
        return Finding(date=run.date, text=report.document(run), samples=asdict(run))

    return command.conduct("usage", measure, publish=not given.no_publish)


def _run(rows: int, repeats: int, asked: str) -> Run:
    _require_room(rows)
    found = machine.describe(machine.split_cores())
    with workplace.open_folder() as folder, database.running(folder) as instance:
        filled = Filled(**database.run_step(instance, STEPS, "fill", str(rows))[-1])
        # As autovacuum does within a minute or two of a table's growth. Only the owner may.
        with psycopg.connect(instance.owner_url(), autocommit=True) as owner:
            owner.execute("ANALYZE")
        answers = [Asked(**each) for each in database.run_step(instance, STEPS, "ask", str(rows), str(repeats))]
    return Run(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found,
        filled=filled,
        asked=answers,
    )


def _require_room(rows: int) -> None:
    folder = tempfile.gettempdir()
    needed, free = rows * BYTES_PER_ROW / 1e9, shutil.disk_usage(folder).free / 1e9
    if free < needed:
        raise Unfit(
            f"{rows:,} requests need about {needed:.0f} GB in {folder}, and {free:.0f} are free.",
            "Set TMPDIR to a larger file system, or give fewer with --rows.",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
