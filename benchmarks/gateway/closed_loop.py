"""Closed-loop load with wrk: each connection sends its next request when the last is answered."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import NotRun
from benchmarks.gateway.load import TIMEOUT_SECONDS, Address, Traffic, write_template

SCRIPT = Path(__file__).parent / "request.lua"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send for how long. ``run``: eight characters that make new prompts new."""

    traffic: Traffic
    connections: int
    seconds: int
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the load generator saw: whole answers, of them those that were no 2xx, and broken connections."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float
    bad_status: int
    broken: int


def generate(folder: Path, address: Address, load: Load) -> Outcome:
    """Run the load to its end. Raises NotRun when the load generator gives no figures."""
    template = write_template(folder, address, load.traffic, load.run)
    arguments = (str(template), str(load.traffic.distinct_prompts))
    return drive(address, SCRIPT, arguments, connections=load.connections, seconds=load.seconds)


def drive(address: Address, script: Path, arguments: Sequence[str], *, connections: int, seconds: int) -> Outcome:
    """Run wrk with a script that has summary.lua write its end. Raises NotRun when it gives no figures."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{TIMEOUT_SECONDS}s"]
    command += ["-s", str(script), address.url, "--", *arguments]
    limit = seconds + TIMEOUT_SECONDS + 20
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        raise NotRun(f"the load generator did not end within {limit} s") from None
    lines = ran.stdout.strip().splitlines()
    if ran.returncode != 0 or not lines or not lines[-1].startswith("{"):
        raise NotRun("nothing answered the load generator", ran.stderr or ran.stdout)
    return Outcome(**json.loads(lines[-1]))
