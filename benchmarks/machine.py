"""The machine of a benchmark: its cores, the tools it must have, and its load from other processes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.errors import Unfit

#: Program → Debian package.
TOOLS = {"wrk": "wrk", "gcc": "gcc", "taskset": "util-linux"}
LIBC_HEADER = Path("/usr/include/stdio.h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The contender has one core to itself; upstream, load generator, Redis, PostgreSQL and drain share the others.

    A contender of two processes also has ``second``, which is one of ``others`` if there are fewer than four cores.
    """

    contender: int
    second: int
    others: tuple[int, ...]

    @property
    def usable(self) -> int:
        """Return the number of cores that the run uses."""
        return len({self.contender, self.second, *self.others})

    @property
    def second_is_shared(self) -> bool:
        return self.second in self.others

    def of(self, processes: int) -> tuple[int, ...]:
        """Return the cores of a contender with one or two processes."""
        return (self.contender,) if processes == 1 else (self.contender, self.second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a reader must know to compare results.

    ``busy_share``: share of all cores that other processes used before the run. ``additions_ms``: shortest and longest
    time of a million additions in Python, also before the run. On a shared host, nothing else shows the load of its
    other guests.
    """

    cpu_model: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    busy_share: float
    additions_ms: tuple[float, float]

    @property
    def described(self) -> str:
        """Return the machine's description for a document."""
        shortest, longest = self.additions_ms
        return (
            f"{self.cpu_model}, {self.cores} cores, {self.memory_gib:g} GiB, Linux {self.kernel}, "
            f"Python {self.python}, a million additions in {shortest:.0f} to {longest:.0f} ms"
        )


def split_cores() -> Cores:
    """Split the cores that this process may use. Raises Unfit when there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise Unfit(
            "Two cores are needed, one for the contender and one for everything else, and there is one.",
            "Run the benchmark where this process may use two cores.",
        )
    return Cores(contender=usable[0], second=usable[1], others=tuple(usable[2:] if len(usable) > 3 else usable[1:]))


@contextmanager
def kept_on(cores: Sequence[int]) -> Iterator[None]:
    """Pin this process, and the processes it starts in the block, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def require_tools() -> None:
    """Install missing packages when run by root on Debian. Raises Unfit, which names those still missing."""
    missing = _missing()
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"Installing {' '.join(missing)}", flush=True)
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            subprocess.run(["apt-get", *command], check=False, stdout=subprocess.DEVNULL)
        missing = _missing()
    if missing:
        raise Unfit(
            f"These system packages are missing: {' '.join(missing)}.",
            f"Install them and run again (Debian: apt-get install {' '.join(missing)}).",
        )


def describe(cores: Cores) -> Machine:
    """Return the machine's present state. Measures the load of other processes for about four seconds."""
    return Machine(
        cpu_model=_cpu_model(),
        cores=cores.usable,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        busy_share=_busy_share(seconds=2.0),
        additions_ms=_additions_ms(seconds=2.0),
    )


def _missing() -> list[str]:
    missing = {package for program, package in TOOLS.items() if shutil.which(program) is None}
    if not LIBC_HEADER.exists():
        missing.add("libc6-dev")
    return sorted(missing)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _busy_share(*, seconds: float) -> float:
    psutil.cpu_percent()
    time.sleep(seconds)
    return round(psutil.cpu_percent() / 100, 3)


def _additions_ms(*, seconds: float) -> tuple[float, float]:
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while not taken or time.perf_counter() < until:
        begun = time.perf_counter()
        total = 0
        for each in range(1_000_000):
            total += each
        taken.append((time.perf_counter() - begun) * 1000)
    return round(min(taken), 1), round(max(taken), 1)
