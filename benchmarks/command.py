"""What the commands of the benchmarks share: stop signals, output, exit status and publication."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

from benchmarks import publication
from benchmarks.errors import BenchError
from hearth.paths import ROOT

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a benchmark: ``text`` for docs/benchmarks.md, ``samples`` for benchmarks/results."""

    date: str
    text: str
    samples: Mapping[str, object]


def conduct(name: str, measure: Callable[[], Finding], *, publish: bool) -> int:
    """Measure, print the result and, with ``publish``, write it as ``name``; return the exit status.

    A stop signal raises KeyboardInterrupt in ``measure``, which must end the processes it started.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        found = measure()
    except BenchError as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; everything it started has ended.", file=sys.stderr)
        return 130
    print(f"\n{found.text}\n")
    if publish:
        for path in publication.write(name, found.date, found.text, found.samples):
            print(f"Written: {path.relative_to(ROOT)}")
    return 0


def commit() -> str:
    """Return the short hash of the measured commit, or "unknown"."""
    return output("git", "rev-parse", "--short", "HEAD")


def output(*command: str) -> str:
    """Return what a program prints, or "unknown" when it prints nothing."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return ran.stdout.strip() or "unknown"


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind, once: a second interrupt must not stop the cleanup."""
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
