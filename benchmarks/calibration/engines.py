"""The two engines of this benchmark, started alike, and one streamed question to either of them."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.errors import BenchError
from benchmarks.gateway.site import free_port
from workers import processes
from workers.engines.choice import driver_for
from workers.engines.driver import TINY_MODEL, EngineSpec

API_KEY = "key-of-the-benchmark"
HOST = "127.0.0.1"
MODEL = "tiny"
#: Few, so that the trace evicts.
BLOCKS = 300
#: Less than a long prompt, so that it is computed in chunks.
STEP_TOKENS = 512
SEQUENCES = 64
ENGINE_ARGUMENTS = (
    *("--num-gpu-blocks-override", str(BLOCKS)),
    *("--max-num-batched-tokens", str(STEP_TOKENS)),
    *("--max-num-seqs", str(SEQUENCES)),
)
#: For vLLM: the tiny model made wider and deeper, with random weights, so that its steps outweigh what happens outside
#: of them, and attention does not outweigh the rest. A prompt's time is then about proportional to its tokens.
WIDER = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
HEAVIER = ("--load-format", "dummy", "--hf-overrides", json.dumps(WIDER))
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One streamed answer: seconds from the sending of the request until each token came."""

    token_seconds: Sequence[float]
    cached_tokens: int

    @property
    def first_token_seconds(self) -> float:
        """Return the time to the first token."""
        return self.token_seconds[0]


class Engine:
    """A running engine, as its clients see it."""

    def __init__(self, spec: EngineSpec, session: aiohttp.ClientSession) -> None:
        self._spec = spec
        self._session = session

    async def ask(self, prompt: Sequence[int], tokens: int) -> Answer:
        """Return the answer to a prompt. Raises BenchError."""
        body = {"model": MODEL, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body |= {"return_token_ids": True, "stream": True, "stream_options": {"include_usage": True}}
        began = time.perf_counter()
        token_seconds: list[float] = []
        cached = 0
        async with self._session.post(f"{self._spec.base_url}/v1/completions", json=body, headers=_HEADERS) as response:
            if response.status != 200:
                raise BenchError(f"An engine answered {response.status}.", await response.text())
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line.removeprefix(b"data: "))
                if usage := chunk.get("usage"):
                    cached = int(usage["prompt_tokens_details"]["cached_tokens"])
                for choice in chunk["choices"]:
                    arrived = len(choice["token_ids"] or ())
                    token_seconds.extend([time.perf_counter() - began] * arrived)
        if len(token_seconds) != tokens:
            raise BenchError(f"An engine gave {len(token_seconds)} tokens instead of {tokens}.")
        return Answer(token_seconds=token_seconds, cached_tokens=cached)

    async def forget(self) -> None:
        """Empty the prefix cache. Raises BenchError when it cannot be emptied."""
        async with self._session.post(f"{self._spec.base_url}/reset_prefix_cache", headers=_HEADERS) as response:
            if (await response.json())["success"] is not True:
                raise BenchError("An engine cannot empty its prefix cache.")

    async def delay(self, seconds: float) -> None:
        """Let a simulated engine begin every request this much later."""
        url = f"{self._spec.base_url}/_sim/faults"
        async with self._session.post(url, json={"latency": seconds}, headers=_HEADERS) as response:
            response.raise_for_status()


_HEADERS = {"Authorization": f"Bearer {API_KEY}"}


@contextmanager
def serving(kind: str, folder: Path, *arguments: str) -> Iterator[EngineSpec]:
    """Start an engine, give it once it is healthy, and kill its session afterwards. Raises BenchError."""
    driver = driver_for(kind)
    spec = EngineSpec(
        replica_id=kind,
        model_path=str(TINY_MODEL),
        served_name=MODEL,
        host=HOST,
        port=free_port(),
        api_key=API_KEY,
        log_path=folder / f"{kind}.log",
        cpu_threads=1,
        development_routes=True,
        engine_args=(*ENGINE_ARGUMENTS, *arguments),
    )
    command = driver.command(spec)
    process = processes.launch(command.argv, log_path=spec.log_path, environment=command.environment(os.environ))
    try:
        deadline = time.monotonic() + driver.startup_budget_seconds
        while not _is_healthy(spec):
            if time.monotonic() > deadline or not processes.is_running(process):
                raise BenchError(f"{kind} did not start.", spec.log_path.read_text(errors="replace")[-2000:])
            time.sleep(0.1)
        yield spec
    finally:
        processes.kill_session(process, timeout_seconds=END_SECONDS)


def _is_healthy(spec: EngineSpec) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{spec.base_url}/health", timeout=5):
        return True
    return False
