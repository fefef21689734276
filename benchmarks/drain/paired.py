"""Compare this tree's drain with that of another checkout: ``python -m benchmarks.drain.paired OTHER``.

Both drain logs of the same shape in turn, each into its own PostgreSQL, so that other load falls on both alike.
OTHER is a checkout with an environment of its own (``.venv``). Prints a table; nothing is written down.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import machine
from benchmarks.drain.report import Drained
from benchmarks.errors import NotRun
from benchmarks.machine import Cores

HERE = Path(__file__).resolve().parents[2]
#: Runs in a checkout: starts its database, prints the environment of its drain, stops it at the end of the input.
_SERVE = """
import json, sys
from benchmarks import database
from benchmarks.gateway import workplace
with workplace.open_folder() as folder, database.running(folder) as instance:
    print(json.dumps(dict(instance.environment("drain"))), flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A checkout, and the environment of its drain."""

    folder: Path
    environment: Mapping[str, str]

    def step(self, cores: Sequence[int], *arguments: str) -> str:
        """Run a step of :mod:`benchmarks.drain.rounds` on these cores; return what it printed. Raises NotRun."""
        with machine.kept_on(cores):
            ran = subprocess.run(
                [python_of(self.folder), "-m", "benchmarks.drain.rounds", *arguments],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
            )
        if ran.returncode != 0:
            raise NotRun(f"a log could not be written or drained in {self.folder}", ran.stderr)
        return ran.stdout


def python_of(folder: Path) -> str:
    """Return the interpreter of a checkout."""
    return str(folder / ".venv" / "bin" / "python")


@contextmanager
def running(folder: Path) -> Iterator[Tree]:
    """Run the database of a checkout, migrated. Raises NotRun."""
    with subprocess.Popen(
        [python_of(folder), "-c", _SERVE], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise NotRun(f"the database of {folder} could not be prepared", "")
        try:
            yield Tree(folder=folder, environment=json.loads(line))
        finally:
            server.stdin.close()


def drained(tree: Tree, cores: Cores, tenants: int, records: int) -> Drained:
    """Write a log, then have it drained by a process alone on its core. Raises NotRun."""
    tree.step(cores.others, "log", str(tenants), str(records))
    found = json.loads(tree.step((cores.contender,), "drain").splitlines()[-1])
    return Drained(tenants=tenants, **found)


def table(pairs: Sequence[tuple[Drained, Drained]]) -> str:
    """Return the medians of each number of tenants, and the median [lowest-highest] of the pairs' ratios."""
    lines = [
        "| tenants | drain, before | now | ratio | PostgreSQL, before | now | ratio | both |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for tenants in sorted({before.tenants for before, _ in pairs}):
        of_them = [(before, now) for before, now in pairs if before.tenants == tenants]
        own = [(before.cpu_us, now.cpu_us) for before, now in of_them]
        server = [(before.postgres_cpu_us, now.postgres_cpu_us) for before, now in of_them]
        both = [(mine[0] + its[0], mine[1] + its[1]) for mine, its in zip(own, server, strict=True)]
        lines.append(f"| {tenants:,} | {_compared(own)} | {_compared(server)} | {_ratios(both)} |")
    return "\n".join(lines)


def _compared(pairs: Sequence[tuple[float, float]]) -> str:
    before, now = (median(each) for each in zip(*pairs, strict=True))
    return f"{before:.1f} µs | {now:.1f} µs | {_ratios(pairs)}"


def _ratios(pairs: Sequence[tuple[float, float]]) -> str:
    ratios = [now / before for before, now in pairs]
    return f"{median(ratios):.2f} × [{min(ratios):.2f}–{max(ratios):.2f}]"


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drain.paired", description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--tenants", type=int, nargs="+", default=[1, 40, 400])
    parser.add_argument("--records", type=int, default=20_000, help="usage records of each round")
    parser.add_argument("--rounds", type=int, default=5, help="of each number of tenants")
    given = parser.parse_args(arguments)
    cores = machine.split_cores()
    pairs: list[tuple[Drained, Drained]] = []
    with machine.kept_on(cores.others), running(given.other.resolve()) as before, running(HERE) as now:
        for _ in range(given.rounds):
            for tenants in given.tenants:
                first, second = (drained(tree, cores, tenants, given.records) for tree in (before, now))
                pairs.append((first, second))
                print(f"{tenants} tenants: {table([(first, second)]).splitlines()[-1]}", flush=True)
    print(table(pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
