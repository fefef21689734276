"""Closed-loop load with wrk: each connection sends its next request when the last is answered."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.errors import NotRun

SCRIPT = Path(__file__).parent / "request.lua"
PATH = "/v1/chat/completions"
#: Distinct prompts of the ``repeated`` workload, all asked once before it is measured.
REPEATED_PROMPTS = 64
TIMEOUT_SECONDS = 10

Workload = Literal["new", "repeated", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to send requests, and as whom."""

    port: int
    api_key: str
    model: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send for how long. ``run``: eight characters that make new prompts new."""

    workload: Workload
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


def generate(address: Address, load: Load) -> Outcome:
    """Run the load to its end. Raises NotRun when the load generator gives no figures."""
    distinct = REPEATED_PROMPTS if load.workload == "repeated" else 0
    shape = "stream" if load.workload == "stream" else "whole"
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{load.seconds}s", "--timeout", f"{TIMEOUT_SECONDS}s"]
    command += ["-s", str(SCRIPT), address.url, "--", address.api_key, address.model, load.run, str(distinct), shape]
    limit = load.seconds + TIMEOUT_SECONDS + 20
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        raise NotRun(f"the load generator did not end within {limit} s") from None
    lines = ran.stdout.strip().splitlines()
    if ran.returncode != 0 or not lines or not lines[-1].startswith("{"):
        raise NotRun("nothing answered the load generator", ran.stderr or ran.stdout)
    return Outcome(**json.loads(lines[-1]))


def ask(address: Address, *, prompt: str, stream: bool = False) -> bytes | None:
    """Send one request and return its answer; None when there is none, or it is an error."""
    body = {"model": address.model, "messages": [{"role": "user", "content": prompt}], "stream": stream}
    headers = {"authorization": f"Bearer {address.api_key}", "content-type": "application/json"}
    request = urllib.request.Request(address.url, data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:
            content: bytes = reply.read()
    except OSError:  # urllib's own errors are among them
        return None
    return content
