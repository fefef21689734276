"""The simulated engines that every router is measured in front of."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.errors import NotRun, Unfit
from benchmarks.gateway.site import Running, Site, free_port
from benchmarks.gateway.upstream import MODEL
from benchmarks.routing.simulator import MAX_SEQUENCES, MAX_STEP_TOKENS, SEQUENCE_SECONDS, STEP_SECONDS
from benchmarks.routing.workload import Workload
from hearth.paths import ROOT

BLOCK_TOKENS = 32
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine. ``events``: where it publishes what its cache holds, by ZMQ."""

    port: int
    events: str
    running: Running

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests(self) -> list[dict[str, Any]]:
        """Return its latest 200 requests. Raises Unfit when it does not answer, as all that ask it."""
        recent: list[dict[str, Any]] = self._ask("/_sim/requests")["recent"]
        return recent

    def is_idle(self) -> bool:
        """Return whether no request runs or waits."""
        counted = self._ask("/_sim/requests")
        return not counted["running"] and not counted["waiting"]

    def is_healthy(self) -> bool:
        """Return whether it answers."""
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=TIMEOUT_SECONDS).close()
        except OSError:
            return False
        return True

    def empty_cache(self) -> None:
        """Remove everything from its cache. Raises Unfit when it refuses."""
        if not self._ask("/reset_prefix_cache", b"")["success"]:
            raise Unfit("An engine's cache could not be emptied: a request still runs.")

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", data=body, timeout=TIMEOUT_SECONDS) as reply:
                found: dict[str, Any] = json.load(reply)
        except OSError as error:
            raise Unfit("A simulated engine does not answer any more.", f"{self.url}{path}: {error!r}") from None
        return found


def cache_tokens(workload: Workload) -> int:
    """Return how many tokens one engine's cache holds."""
    return workload.cache_blocks * workload.block_size


def start(site: Site, workload: Workload, count: int, slowdown: float = 1.0) -> list[Engine]:
    """Start engines of the workload's size and speed, and wait until they answer. Raises Unfit.

    Their steps take as long as in the simulation, times ``slowdown``.
    """
    found = [_start(site, workload, number, slowdown) for number in range(count)]
    try:
        for engine in found:
            engine.running.wait_until(engine.is_healthy)
    except NotRun as error:
        raise Unfit(f"A simulated engine does not run: {error.problem}.", error.detail) from None
    return found


def end(engines: Sequence[Engine]) -> None:
    """End them."""
    for engine in engines:
        engine.running.end()


def _start(site: Site, workload: Workload, number: int, slowdown: float) -> Engine:
    port, events = free_port(), f"tcp://127.0.0.1:{free_port()}"
    blocks = cache_tokens(workload) // BLOCK_TOKENS
    turns = [turn for conversation in workload.conversations for turn in conversation.turns]
    context = min(blocks * BLOCK_TOKENS, max(turn.prompt_tokens + turn.output_tokens for turn in turns))
    command = [
        *(sys.executable, "-m", "workers.simulated", "--model", MODEL, "--port", str(port)),
        *("--max-model-len", str(context), "--max-num-seqs", str(MAX_SEQUENCES)),
        *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(blocks + 1)),
        *("--prefill-tokens-per-second", str(workload.tokens_per_second)),
        *("--max-num-batched-tokens", str(MAX_STEP_TOKENS), "--step-seconds", str(STEP_SECONDS * slowdown)),
        *("--sequence-seconds", str(SEQUENCE_SECONDS * slowdown)),
        *("--kv-events-config", json.dumps({"endpoint": events})),
    ]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "VLLM_SERVER_DEV_MODE": "1"}
    return Engine(port=port, events=events, running=site.start(f"engine-{number}-{port}", command, environment))
