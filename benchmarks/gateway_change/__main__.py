"""Compare this tree's gateway with that of an earlier commit: ``python -m benchmarks.gateway_change COMMIT``.

Both run at once, one paused while the other is measured, in turn; each start of a pair is measured several times, and
both are started several times, because one start of the same code differs from the next by some percent. See
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks import command, machine
from benchmarks.command import Finding
from benchmarks.errors import NotRun, Unfit
from benchmarks.gateway_change.stack import REPLY
from hearth.paths import ROOT

STACK = Path(__file__).with_name("stack.py")


@dataclass(frozen=True, slots=True)
class Shot:
    """One measurement: ``traffic`` is a number in the contender's list, 0 bytes its usual body of 1 KB."""

    title: str
    traffic: int
    body_bytes: int
    connections: int


SHOTS = (
    Shot("misses, 1 connection", 0, 0, 1),
    Shot("misses, 64 connections", 0, 0, 64),
    Shot("prediction hits, 64 connections", 1, 0, 64),
    Shot("streams of 64 events, 16 connections", 2, 0, 16),
    Shot("misses of 100 KB, 16 connections", 0, 100_000, 16),
    Shot("prediction hits of 100 KB, 16 connections", 1, 100_000, 16),
)
TRAFFICS = ["new", "repeated", "stream", "replayed"]


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests a second, processor time per request in µs, failed requests."""

    rps: float
    cpu_us: float
    failures: int


#: The samples of one start, before and now, in pairs.
Start = list[tuple[Sample, Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    base: str
    starts: int
    pairs: int
    seconds: int


class Stack:
    """A running gateway of one version; ``folder`` is its source tree."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, STACK], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input: IO[str] = self._process.stdin
        self._output: IO[str] = self._process.stdout
        if self._read() != TRAFFICS:
            raise NotRun(f"the benchmark in {folder} has other kinds of requests")

    def measure(self, shot: Shot, seconds: int) -> Sample:
        """Take one sample. Raises NotRun."""
        self._input.write(json.dumps([shot.traffic, shot.body_bytes, shot.connections, seconds]) + "\n")
        self._input.flush()
        rps, cpu_us, failures = self._read()
        return Sample(rps, cpu_us, failures)

    def end(self) -> None:
        """End it and everything it started."""
        self._input.close()
        self._process.wait()

    def _read(self) -> list[Any]:
        for line in self._output:
            if line.startswith(REPLY):
                found: list[Any] = json.loads(line.removeprefix(REPLY))
                return found
        raise NotRun("a gateway to compare ended; its errors are above")


def main(arguments: Sequence[str]) -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_change", description=__doc__)
    parser.add_argument("base", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--starts", type=int, default=4, help="how often both are started (4)")
    parser.add_argument("--pairs", type=int, default=4, help="measurements of each kind per start (4)")
    parser.add_argument("--seconds", type=int, default=1, help="length of one measurement (1)")
    given = parser.parse_args(arguments)
    options = Options(base=given.base, starts=given.starts, pairs=given.pairs, seconds=given.seconds)
    if min(options.starts, options.pairs, options.seconds) < 1:
        parser.error("--starts, --pairs and --seconds are at least 1")
    return command.conduct("gateway-change", lambda: _run(options), publish=False)


def _run(options: Options) -> Finding:
    machine.require_tools()
    described = machine.describe(machine.split_cores()).described
    starts: list[dict[Shot, Start]] = []
    with _checked_out(options.base) as (folder, python):
        for number in range(options.starts):
            print(f"Start {number + 1} of {options.starts}", flush=True)
            starts.append(_measure(options, folder, python, base_first=number % 2 == 0))
    text = _report(options, starts, described)
    return Finding(date=time.strftime("%Y-%m-%d"), text=text, samples={})


@contextmanager
def _checked_out(commit: str) -> Iterator[tuple[Path, Path]]:
    """Check the commit out into a temporary folder; yield it and an interpreter that imports from it.

    Its packages are those of this environment. Raises Unfit when there is no such commit.
    """
    folder = Path(tempfile.mkdtemp(prefix="hearth-change-"))
    folder.chmod(0o755)
    tree, environment = folder / "tree", folder / "environment"
    try:
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        own = [each for each in sys.path if each.endswith("site-packages")]
        packages = next(environment.glob("lib/python*/site-packages"))
        (packages / "tree.pth").write_text("\n".join([str(tree), str(tree / "platform"), *own, ""]))
        yield tree, environment / "bin" / "python"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _git("worktree", "prune")


def _git(*arguments: str) -> None:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Unfit(f"git {arguments[0]} failed.", ran.stderr.strip())


def _measure(options: Options, folder: Path, python: Path, *, base_first: bool) -> dict[Shot, Start]:
    """Start both, measure them in turn, end both."""
    found: dict[Shot, Start] = {shot: [] for shot in SHOTS}
    with ExitStack() as cleanup:

        def start(tree: Path, interpreter: Path) -> Stack:
            stack = Stack(tree, interpreter)
            cleanup.callback(stack.end)
            return stack

        if base_first:
            base, now = start(folder, python), start(ROOT, Path(sys.executable))
        else:
            now, base = start(ROOT, Path(sys.executable)), start(folder, python)
        for number in range(options.pairs):
            for shot in SHOTS:
                if number % 2 == 0:
                    before = base.measure(shot, options.seconds)
                    after = now.measure(shot, options.seconds)
                else:
                    after = now.measure(shot, options.seconds)
                    before = base.measure(shot, options.seconds)
                found[shot].append((before, after))
    return found


def _report(options: Options, starts: Sequence[dict[Shot, Start]], described: str) -> str:
    """Return the table: the ratio of a start is that of its medians; the row has the mean, lowest and highest start."""
    lines = [
        f"- `python -m benchmarks.gateway_change {options.base}`: {command.commit()} beside {options.base}, "
        f"{options.starts} starts of {options.pairs} pairs of {options.seconds} s, {time.strftime('%Y-%m-%d')}.",
        f"- {described}.",
        "",
        f"|  | CPU/req, {options.base} | now | ratio over the starts | failed |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for shot in SHOTS:
        pairs = [pair for start in starts for pair in start[shot]]
        before = statistics.median(sample.cpu_us for sample, _ in pairs)
        after = statistics.median(sample.cpu_us for _, sample in pairs)
        ratios = [_ratio(start[shot]) for start in starts]
        failed = sum(a.failures + b.failures for a, b in pairs)
        mean = f"{statistics.fmean(ratios):.3f} × [{min(ratios):.3f}–{max(ratios):.3f}]"
        lines.append(f"| {shot.title} | {before:,.0f} µs | {after:,.0f} µs | {mean} | {failed} |")
    return "\n".join(lines)


def _ratio(start: Start) -> float:
    return statistics.median(after.cpu_us for _, after in start) / statistics.median(
        before.cpu_us for before, _ in start
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
