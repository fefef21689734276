"""Open-loop load: requests are due at a constant rate, and latency counts from the moment each was due.

Debian has no constant-rate generator for HTTP, so it is a C program of ours (benchmarks/open_loop); what it can do by
itself is measured before it is used.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks import compiler
from benchmarks.errors import NotRun
from benchmarks.gateway.load import Address, Traffic, new_run, write_template

SOURCE = Path(__file__).parents[1] / "open_loop" / "open_loop.c"
MAX_CONNECTIONS = 1024
WARM_UP_SECONDS = 1
#: What the program may take beyond the time of its load: its own patience with the last answers, and some.
GRACE_SECONDS = 20
#: It keeps up with a rate while, for 99 of 100 requests, it comes round this soon after they are due, milliseconds.
PUNCTUAL_MS = 5.0
LIMIT_RATES = (1_000, 5_000, 20_000, 40_000)
#: A machine that is not quite quiet gets a second chance at each.
LIMIT_TRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Microseconds."""

    p50: float
    p95: float
    p99: float
    p999: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What became of the requests that were due, warm-up apart, and when.

    ``whole`` and ``first`` (byte of the body) count from when a request was due, and an unanswered one counts with the
    time it had; ``late`` is how much later the generator itself came round.
    """

    rate: int
    seconds: float
    due: int
    answered: int
    refused: int
    broken: int
    unanswered: int
    connections: int
    whole: Percentiles
    first: Percentiles
    late: Percentiles

    @property
    def sent(self) -> int:
        """How many requests left, warm-up included."""
        return self.due + self.rate * WARM_UP_SECONDS

    @property
    def failed(self) -> int:
        return self.refused + self.broken + self.unanswered


def build(folder: Path) -> Path:
    """Compile the generator into the folder. Raises Unfit."""
    return compiler.compile_program(SOURCE, folder)


def generate(
    program: Path,
    address: Address,
    traffic: Traffic,
    *,
    rate: int,
    seconds: int,
    warm_up_seconds: int = WARM_UP_SECONDS,
) -> Arrivals:
    """Send ``rate`` requests a second. Raises NotRun when the generator gives no figures."""
    template = write_template(program.parent, address, traffic, new_run())
    numbers = (rate, seconds, warm_up_seconds, traffic.distinct_prompts, MAX_CONNECTIONS)
    command = [str(program), str(address.port), str(template), *map(str, numbers)]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds + warm_up_seconds + GRACE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NotRun("the load generator did not end") from None
    if ran.returncode != 0:
        raise NotRun("nothing answered the load generator", ran.stderr)
    return _arrivals(rate, json.loads(ran.stdout))


def limit(program: Path, upstream: Address, traffic: Traffic) -> int:
    """Return the highest of LIMIT_RATES at which the generator is punctual and the upstream answers all, 0 for none.

    Both share the cores that they have during the run.
    """
    reached = 0
    for rate in LIMIT_RATES:
        tries = (_unwarmed(program, upstream, traffic, rate) for _ in range(LIMIT_TRIES))
        if not any(found.failed == 0 and found.late.p99 <= PUNCTUAL_MS * 1000 for found in tries):
            break
        reached = rate
    return reached


def _unwarmed(program: Path, upstream: Address, traffic: Traffic, rate: int) -> Arrivals:
    return generate(program, upstream, traffic, rate=rate, seconds=1, warm_up_seconds=0)


def _arrivals(rate: int, found: dict[str, float]) -> Arrivals:
    def percentiles(name: str) -> Percentiles:
        return Percentiles(**{share: found[f"{name}_{share}_us"] for share in ("p50", "p95", "p99", "p999")})

    counts = {name: int(found[name]) for name in ("due", "answered", "refused", "broken", "unanswered", "connections")}
    return Arrivals(
        rate=rate,
        seconds=found["seconds"],
        whole=percentiles("whole"),
        first=percentiles("first"),
        late=percentiles("late"),
        **counts,
    )
