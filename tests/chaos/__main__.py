"""Break a running instance on purpose, again and again, and compare what clients saw with what is stored.

Each seed starts an instance, draws its faults from the seed, and appends its report to a file; a seed that is in the
file already is left out, so that runs add up. docs/reliability.md shows the sums. Every fourth seed steps the clock,
too; the disk is filled where this process may mount. With --heads it is two heads on replicated servers, and other
faults.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from hearth.paths import ROOT
from tests.chaos import heads, page
from tests.chaos.faults import BY_KIND, drawn
from tests.chaos.run import Report, run
from tests.chaos.world import can_mount, leftovers, running

CLOCK_EVERY = 4


def main() -> int:
    """Run the seeds that are asked for. Returns 1 when anything differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed [1]")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds [1]")
    parser.add_argument("--faults", type=int, default=20, help="faults of each seed [20]")
    parser.add_argument("--heads", action="store_true", help="two heads, a standby, and Sentinels")
    parser.add_argument(
        "--kind",
        choices=sorted(BY_KIND | heads.BY_KIND),
        help="only this kind of fault; reports nothing to the file",
    )
    parser.add_argument("--file", type=Path, help="where reports are kept")
    parser.add_argument("--again", action="store_true", help="run seeds that are in the file, and keep no report")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # so that a run that is stopped stops its instance
        signal.signal(number, _stop)
    given.file = given.file or (page.HEADS_REPORTS if given.heads else page.REPORTS)
    keep = not given.kind and not given.again
    done = {report["seed"] for report in page.reports(given.file)} if keep else set()
    differences = 0
    for seed in range(given.seed, given.seed + given.seeds):
        if seed in done:
            print(f"seed {seed} is in {given.file.name}")
            continue
        report = _run_heads(seed, given.faults, given.kind) if given.heads else _run(seed, given.faults, given.kind)
        differences += len(report.differences)
        if keep:
            page.append(given.file, report, commit=_commit(), date=datetime.now(tz=UTC).date().isoformat())
            page.write(given.file)
    return 1 if differences else 0


def _stop(number: int, _: object) -> None:
    sys.exit(128 + number)


def _run_heads(seed: int, count: int, kind: str | None) -> Report:
    print(f"seed {seed}: {count} faults, two heads", flush=True)
    faults = list(heads.drawn(seed, count))
    if kind:
        faults = [(heads.BY_KIND[kind], random) for _, random in faults]
    with heads.running() as world:
        report = asyncio.run(run(world, faults, seed, lambda text: print(text, flush=True)))
    return _told(report, heads.leftovers(world))


def _run(seed: int, count: int, kind: str | None) -> Report:
    moving_clock = BY_KIND[kind].needs_moving_clock if kind else seed % CLOCK_EVERY == 0
    small_disk = can_mount()
    print(f"seed {seed}: {count} faults{', the clock steps' if moving_clock else ''}", flush=True)
    faults = list(drawn(seed, count, small_disk=small_disk, moving_clock=moving_clock))
    if kind:
        faults = [(BY_KIND[kind], random) for _, random in faults]
    with running(small_disk=small_disk, moving_clock=moving_clock) as world:
        report = asyncio.run(run(world, faults, seed, lambda text: print(text, flush=True)))
    return _told(report, leftovers(world))


def _told(report: Report, left: list[str]) -> Report:
    """Add what was left behind to a report, and print it."""
    report.differences += [f"after hearth down: {each}" for each in left]
    for each in report.struck:
        print(f"  {each}")
    failed = sum(each.failed for each in report.struck)
    print(
        f"seed {report.seed}: {report.requests} requests, {failed} failed, engines counted {report.counted_tokens}"
        f" tokens and {report.stored_tokens} are stored, {len(report.differences)} differences",
        flush=True,
    )
    return report


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
