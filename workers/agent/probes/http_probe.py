"""Probe an engine over HTTP: health, load, and a canary of one token. No Django here."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.agent.probes.recent_times import Totals
from workers.engines import cache_config
from workers.serving.canary import EMBEDDINGS, TEXT, Canary, CanaryResult, CanarySink, CanaryTarget

_OWN = re.compile(r"^hearth_engine_(max_requests|host_cache_tokens|context_tokens) ([0-9.eE+]+)$", re.MULTILINE)
_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
#: An engine's metrics are some 100 KiB, and the answer to a canary less.
LARGEST_PAGE_BYTES = 8 * 2**20
_CHUNK_BYTES = 1 << 16
_FINISHED = re.compile(
    r'^vllm:request_success_total\{(?:[^}]*,)?finished_reason="(\w+)"[^}]*\} ([0-9.eE+-]+)$', re.MULTILINE
)
#: Reasons for which a sequence ended without a response.
_UNFINISHED = ("abort", "error")
#: Of a column.
LARGEST_NUMBER = 2**31 - 1
#: The metrics of each total.
_TOTALS = {
    "first_tokens": "time_to_first_token_seconds_count",
    "first_token_seconds": "time_to_first_token_seconds_sum",
    "intervals": "inter_token_latency_seconds_count",
    "interval_seconds": "inter_token_latency_seconds_sum",
    "prompt_tokens": "prefix_cache_queries_total",
    "cached_tokens": "prefix_cache_hits_total",
}
#: What counts as progress: an engine that neither reads nor writes tokens may be wedged.
_PROGRESS = ("prompt_tokens_total", "generation_tokens_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """What an engine process has counted since its start. ``cached_prompt_tokens`` are part of ``prompt_tokens``.

    ``finished_sequences``: those that came to their end; vLLM does not count one that its client gave up.
    """

    prompt_tokens: int = 0
    cached_prompt_tokens: int | None = None
    completion_tokens: int = 0
    finished_sequences: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The load of an engine. ``kv_usage`` is a share, 0 to 1; ``tokens`` counts all tokens since its start.

    ``cache_tokens``: how many tokens its KV cache holds; ``max_requests``: how many requests it runs at once;
    ``host_cache_tokens``: how many tokens it keeps in host memory; ``context_tokens``: its longest prompt and
    completion together. Each is None if it does not say.
    """

    running: int
    waiting: int
    kv_usage: float
    tokens: int
    cache_tokens: int | None
    max_requests: int | None
    host_cache_tokens: int | None = None
    context_tokens: int | None = None
    totals: Totals = field(default_factory=Totals)
    counters: EngineCounters = field(default_factory=EngineCounters)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of one probe. ``load`` and ``canary`` are None if they were not requested or got no response."""

    healthy: bool
    problem: str = ""
    load: EngineLoad | None = None
    canary: CanaryResult | None = None


class Prober:
    """Probes engines. ``timeout_seconds`` bounds every wait for health and metrics."""

    def __init__(self, sink: CanarySink, *, timeout_seconds: float) -> None:
        self._sink = sink
        self._timeout_seconds = timeout_seconds

    def probe(self, target: CanaryTarget, *, canary_timeout_seconds: float | None) -> ProbeResult:
        """Read health and load, and send a canary if it has a timeout. Network errors are part of the result."""
        try:
            status, _ = request(target, "GET", "/health", timeout_seconds=self._timeout_seconds)
        except (OSError, http.client.HTTPException) as error:
            return ProbeResult(healthy=False, problem=_cause(error))
        if status != 200:
            return ProbeResult(healthy=False, problem=f"/health returned {status}")
        canary = None if canary_timeout_seconds is None else self.canary(target, canary_timeout_seconds)
        return ProbeResult(healthy=True, load=self._load(target), canary=canary)

    def _load(self, target: CanaryTarget) -> EngineLoad | None:
        try:
            status, body = request(target, "GET", "/metrics", timeout_seconds=self._timeout_seconds)
        except (OSError, http.client.HTTPException):
            return None
        return parse_load(body.decode(errors="replace")) if status == 200 else None

    def canary(self, target: CanaryTarget, timeout_seconds: float) -> CanaryResult:
        """Send a canary of one token and record it. Network errors are part of the result."""
        canary = target.canary(EMBEDDINGS if target.embeds else TEXT)
        self._sink.begin(canary)
        result = _one_token(target, canary, timeout_seconds)
        self._sink.end(canary, result)
        return result


def read_metrics(target: CanaryTarget, *, timeout_seconds: float) -> bytes:
    """Return an engine's page of metrics, of which no more is read than LARGEST_PAGE_BYTES.

    Raises OSError (a timeout is one) or HTTPException, also if the engine answers with an error or a larger page.
    """
    status, body = request(target, "GET", "/metrics", timeout_seconds=timeout_seconds)
    if status != 200:
        raise OSError(f"/metrics returned {status}")
    return body


def parse_load(text: str) -> EngineLoad | None:
    """Return the load in a page of Prometheus metrics, summed over engines; None if it has no request counts."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    if "num_requests_running" not in sums or "num_requests_waiting" not in sums:
        return None
    own = _own(text)
    return EngineLoad(
        running=int(sums["num_requests_running"]),
        waiting=int(sums["num_requests_waiting"]),
        kv_usage=min(1.0, sums.get("kv_cache_usage_perc", 0.0)),
        tokens=int(sum(sums.get(name, 0.0) for name in _PROGRESS)),
        cache_tokens=cache_config.cache_tokens(text),
        max_requests=own.get("max_requests"),
        host_cache_tokens=own.get("host_cache_tokens"),
        context_tokens=own.get("context_tokens"),
        totals=Totals(**{name: sums.get(metric, 0.0) for name, metric in _TOTALS.items()}),
        counters=_counters(text, sums),
    )


def _counters(text: str, sums: Mapping[str, float]) -> EngineCounters:
    cached = sums.get("prompt_tokens_cached_total")
    return EngineCounters(
        prompt_tokens=int(sums.get("prompt_tokens_total", 0)),
        cached_prompt_tokens=None if cached is None else int(cached),
        completion_tokens=int(sums.get("generation_tokens_total", 0)),
        finished_sequences=int(sum(float(n) for reason, n in _FINISHED.findall(text) if reason not in _UNFINISHED)),
    )


def _own(text: str) -> dict[str, int]:
    """Return what Hearth's middleware, or the simulated engine, adds to the metrics, if a row can hold it."""
    found = {name: _number(value) for name, value in _OWN.findall(text)}
    return {name: int(value) for name, value in found.items() if 1 <= value <= LARGEST_NUMBER}


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0


def _one_token(target: CanaryTarget, canary: Canary, timeout_seconds: float) -> CanaryResult:
    """Send a prompt shorter than any cache block, so that canaries neither fill nor hit a prefix cache."""
    model = target.engine_name or target.model_name
    body: dict[str, Any] = {"model": model, "prompt": "Hi", "max_tokens": 1, "temperature": 0}
    if target.embeds:
        body = {"model": model, "input": "Hi"}
    headers = {"content-type": "application/json", "x-request-id": str(canary.request_id)}
    raw, path = json.dumps(body).encode(), canary.endpoint
    try:
        status, answer = request(target, "POST", path, timeout_seconds=timeout_seconds, body=raw, headers=headers)
    except (OSError, http.client.HTTPException) as error:
        return CanaryResult(finished_at_ns=time.time_ns(), status=0, problem=_cause(error))
    if status != 200:
        problem = f"{status}: {answer[:200].decode(errors='replace')}"
        return CanaryResult(finished_at_ns=time.time_ns(), status=status, problem=problem)
    try:
        return _counted(json.loads(answer)["usage"], embeds=target.embeds)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return CanaryResult(finished_at_ns=time.time_ns(), status=200, problem=f"unreadable response: {error!r}")


def _counted(usage: Mapping[str, Any], *, embeds: bool) -> CanaryResult:
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return CanaryResult(
        finished_at_ns=time.time_ns(),
        status=200,
        prompt_tokens=int(usage["prompt_tokens"]) - cached,
        cached_prompt_tokens=cached,
        completion_tokens=int(usage["completion_tokens"]),
        problem="" if embeds or usage["completion_tokens"] else "no token came back",
    )


def request(
    target: CanaryTarget,
    method: str,
    path: str,
    *,
    timeout_seconds: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Send one request on a connection of its own. Raises OSError (a timeout is one) or HTTPException."""
    connection = target.connection(timeout_seconds=timeout_seconds)
    try:
        connection.request(
            method, path, body=body, headers={"authorization": f"Bearer {target.api_key}", **(headers or {})}
        )
        response = connection.getresponse()
        return response.status, _read(response, time.monotonic() + timeout_seconds)
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Return the body. Raises OSError if it is too large, or not here by the deadline."""
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > LARGEST_PAGE_BYTES:
            raise OSError(f"more than {LARGEST_PAGE_BYTES >> 20} MiB came back")
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(body)


def _cause(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
