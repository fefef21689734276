"""Time engines' starts: ``python -m benchmarks.coldstart`` (``make bench-coldstart``). See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import command, machine
from benchmarks.coldstart import report, rounds
from benchmarks.coldstart.report import Run
from benchmarks.command import Finding
from benchmarks.errors import Unfit
from workers.engines import environment


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coldstart", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how many starts of each kind and place (3)")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error("--rounds is at least 1")
    asked = "python -m benchmarks.coldstart " + " ".join(arguments)

    def measure() -> Finding:
        run = _run(given.rounds, asked.strip())
        return Finding(date=run.date, text=report.document(run), samples=report.as_json(run))

    return command.conduct("coldstart", measure, publish=not given.no_publish)


def _run(count: int, asked: str) -> Run:
    installed = environment.default()
    if installed is None:
        raise Unfit("The engine environment is not installed.", "Run `make engine` first.")
    found = machine.describe(machine.split_cores())
    with tempfile.TemporaryDirectory(prefix="hearth-coldstart-") as folder:
        figures = rounds.measure(Path(folder), rounds=count)
    return Run(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found,
        engine=f"{installed.kind} {installed.vllm_version}",
        rounds=count,
        figures=figures,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
