"""Time engines' starts: ``python -m benchmarks.coldstart`` (``make bench-coldstart``). See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks.coldstart import report, rounds
from benchmarks.coldstart.report import Run
from benchmarks.gateway import machine, publication
from benchmarks.gateway.errors import BenchError, Unfit
from hearth import env
from workers.engines import environment

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coldstart", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how many starts of each kind and place (3)")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error("--rounds is at least 1")
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        run = _run(given.rounds, "python -m benchmarks.coldstart " + " ".join(arguments))
    except BenchError as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; everything it started has ended.", file=sys.stderr)
        return 130
    text = report.document(run)
    print(f"\n{text}\n")
    if not given.no_publish:
        for path in publication.write("coldstart", run.date, text, report.as_json(run)):
            print(f"Written: {path.relative_to(env.ROOT)}")
    return 0


def _run(count: int, command: str) -> Run:
    installed = environment.status()
    if installed is None:
        raise Unfit("The engine environment is not installed.", "Run `make engine` first.")
    found = machine.describe(machine.split_cores())
    with tempfile.TemporaryDirectory(prefix="hearth-coldstart-") as folder:
        figures = rounds.measure(Path(folder), rounds=count)
    return Run(
        command=command.strip(),
        date=time.strftime("%Y-%m-%d"),
        commit=_commit(),
        machine=found,
        engine=f"{installed.kind} {installed.vllm_version}",
        rounds=count,
        figures=figures,
    )


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=env.ROOT)
    return ran.stdout.strip() or "unknown"


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind, once: whoever asks again must not interrupt the ending of what was started."""
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
