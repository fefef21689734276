"""The Prometheus metrics of a gateway process.

Labels have few values by nature: endpoints, models, kinds; never tenants, keys or projects. A request counts here a few
times and may spend 5 µs on it, so each combination of labels is looked up once and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal
from uuid import UUID

from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from billing.wal.records import End
from gateway.counters import Counter, CounterVec, Histogram, HistogramVec

#: Seconds: from a cache hit to a long generation.
DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
FIRST_TOKENS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: From the small model on a fast GPU to a large one on a busy CPU.
TOKEN_INTERVALS = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)

#: The levels of the prediction cache, the outcome of a lookup, and of storing a response.
CacheLevel = Literal["first", "redis"]
CacheLookup = Literal["hit", "miss", "stale", "altered", "no_stream"]
CacheStore = Literal["stored", "quota", "write_rate", "too_large", "incomplete", "failed"]
#: Results of the prediction cache after which an engine ran the request.
_RAN = frozenset({"miss", "bypass"})
#: How an engine failed a request.
EngineFailure = Literal["connect", "timeout", "broken", "status"]

_REQUESTS = CounterVec(
    "hearth_gateway_requests",
    "Requests with a response, errors included; model is empty until it is known.",
    ("endpoint", "model", "status"),
)
_ANSWERS = CounterVec("hearth_gateway_answers", "Metered responses, by how they ended.", ("model", "state"))
_DURATION = HistogramVec(
    "hearth_gateway_request_duration_seconds",
    "From the arrival of a metered request to its last byte.",
    ("endpoint", "model"),
    bounds=DURATIONS,
)
_FIRST_TOKEN = HistogramVec(
    "hearth_gateway_time_to_first_token_seconds",
    "From the arrival of a streamed request to its first token, without cache hits.",
    ("model",),
    bounds=FIRST_TOKENS,
)
_REPLICA_FIRST_TOKEN = HistogramVec(
    "hearth_gateway_replica_time_to_first_token_seconds",
    "From the arrival of a streamed request to its first token, without the time it waited for a replica.",
    ("model", "replica"),
    bounds=FIRST_TOKENS,
)
_REPLICA_TOKEN_INTERVAL = HistogramVec(
    "hearth_gateway_replica_time_per_output_token_seconds",
    "Mean time between two tokens of a complete stream, from its first token to its end.",
    ("model", "replica"),
    bounds=TOKEN_INTERVALS,
)
_TOKENS = CounterVec("hearth_gateway_tokens", "Tokens of metered responses, in disjoint classes.", ("model", "kind"))
_PREFIX_TOKENS = CounterVec(
    "hearth_gateway_prefix_tokens",
    "Prompt tokens that engines counted, those that routing expected to be cached, and those that were.",
    ("model", "replica", "kind"),
)
_CACHE = CounterVec(
    "hearth_gateway_cache_results",
    "Metered requests, by the result of the prediction cache.",
    ("result", "reason"),
)
_CACHE_LOOKUPS = CounterVec(
    "hearth_gateway_cache_lookups",
    "Lookups of a stored response, by cache level and outcome.",
    ("level", "outcome"),
)
_CACHE_STORES = CounterVec("hearth_gateway_cache_stores", "Responses to store, by outcome.", ("outcome",))
_CACHE_EVICTIONS = CounterVec(
    "hearth_gateway_cache_evictions",
    "Stored responses evicted to make room for others.",
    ("level",),
)
CACHE_FIRST_LEVEL_BYTES = Gauge(
    "hearth_gateway_cache_first_level_bytes",
    "Size of the stored responses that the process has in memory.",
    registry=None,
)
BODY_BYTES = Gauge(
    "hearth_gateway_body_bytes",
    "Size of the request bodies that the process has in memory or has let clients announce.",
    registry=None,
)
_LIMIT_REFUSALS = PrometheusCounter(
    "hearth_gateway_limit_refusals", "Requests rejected by a limit or a hard budget.", ("reason",), registry=None
)
_ENGINE_FAILURES = PrometheusCounter(
    "hearth_gateway_engine_failures",
    "Engines that failed a request, before or after its first byte.",
    ("model", "reason"),
    registry=None,
)
_ENGINE_RETRIES = PrometheusCounter(
    "hearth_gateway_engine_retries", "Requests retried on another replica.", ("model",), registry=None
)
REDIS_FAILURES = PrometheusCounter(
    "hearth_gateway_redis_failures", "Times that Redis failed or timed out.", registry=None
)
REDIS_BREAKER_OPENS = PrometheusCounter(
    "hearth_gateway_redis_breaker_opens", "Times that the breaker to Redis opened.", registry=None
)

REDIS_UNREPLICATED = PrometheusCounter(
    "hearth_gateway_redis_unreplicated",
    "Records of Idempotency-Keys that no replica of Redis confirmed in time.",
    registry=None,
)

ROUTING_PROCESSES = Gauge(
    "hearth_gateway_routing_processes",
    "Processes of this host that share what routing knows, this one included.",
    registry=None,
)
ROUTING_DRIFTING = Gauge(
    "hearth_gateway_routing_drifting_replicas",
    "Replicas by whose prefix cache nothing is routed, because predictions of it were wrong too often.",
    registry=None,
)
ROUTING_REMOTE_PROCESSES = Gauge(
    "hearth_gateway_routing_remote_processes",
    "Gateway processes of other hosts that lately said what they know.",
    registry=None,
)
PEER_CONNECTIONS = Gauge(
    "hearth_gateway_peer_connections", "Connections with other gateway processes of this host.", registry=None
)
REMOTE_FLIGHTS = PrometheusCounter(
    "hearth_gateway_remote_flights", "Flights of other gateway processes that this one followed.", registry=None
)
FLIGHT_TAKEOVERS = PrometheusCounter(
    "hearth_gateway_flight_takeovers",
    "Flights begun in place of one of another gateway process that could not be followed.",
    registry=None,
)

QUEUED_REQUESTS = Gauge(
    "hearth_gateway_queued_requests", "Requests that wait for a replica, or for room on one.", ("model",), registry=None
)
QUEUE_SECONDS = PrometheusHistogram(
    "hearth_gateway_queue_seconds",
    "Time that requests waited for a replica, or for room on one.",
    ("model", "outcome"),
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
    registry=None,
)

CONTENT_ENTRIES = PrometheusCounter(
    "hearth_gateway_content_entries",
    "Prompts and answers for content logs: stored, without room (full), or lost (dropped, failed).",
    ("outcome",),
    registry=None,
)
TRACE_SPANS = PrometheusCounter(
    "hearth_gateway_trace_spans",
    "Spans of traced requests: sent, failed to send, or dropped.",
    ("outcome",),
    registry=None,
)


#: The metrics of a process that serves requests.
METRICS = (
    _REQUESTS,
    _ANSWERS,
    _DURATION,
    _FIRST_TOKEN,
    _REPLICA_FIRST_TOKEN,
    _REPLICA_TOKEN_INTERVAL,
    _TOKENS,
    _PREFIX_TOKENS,
    _CACHE,
    _CACHE_LOOKUPS,
    _CACHE_STORES,
    _CACHE_EVICTIONS,
    CACHE_FIRST_LEVEL_BYTES,
    BODY_BYTES,
    _LIMIT_REFUSALS,
    _ENGINE_FAILURES,
    _ENGINE_RETRIES,
    REDIS_FAILURES,
    REDIS_BREAKER_OPENS,
    REDIS_UNREPLICATED,
    ROUTING_PROCESSES,
    ROUTING_DRIFTING,
    ROUTING_REMOTE_PROCESSES,
    PEER_CONNECTIONS,
    REMOTE_FLIGHTS,
    FLIGHT_TAKEOVERS,
    QUEUED_REQUESTS,
    QUEUE_SECONDS,
    TRACE_SPANS,
    CONTENT_ENTRIES,
)


def answered(endpoint: str, model: str, status: int) -> None:
    """Count a request whose response begins now."""
    _requests(endpoint, model, status // 100).inc()


def ended(endpoint: str, model: str, end: End) -> None:
    """Count the usage record of a request that has ended."""
    series = _series(endpoint, model)
    series.duration.observe(end.duration_ms / 1000)
    if end.ttft_ms is not None:
        series.first_token.observe(end.ttft_ms / 1000)
    if end.prompt_tokens:
        series.prompt_tokens.inc(end.prompt_tokens)
    if end.cached_prompt_tokens:
        series.cached_prompt_tokens.inc(end.cached_prompt_tokens)
    if end.completion_tokens:
        series.completion_tokens.inc(end.completion_tokens)
    if end.replica_id is not None and end.cache_result in _RAN:
        _count_on_replica(_replica_series(model, end.replica_id), end)
    _ANSWERS.labels(model, end.state).inc()
    _CACHE.labels(end.cache_result, end.cache_reason).inc()


def _count_on_replica(series: _ReplicaSeries, end: End) -> None:
    """Count a request that ran on a replica."""
    if end.predicted_cached_tokens is not None:
        series.prompt_tokens.inc(end.prompt_tokens + end.cached_prompt_tokens)
        series.predicted_tokens.inc(end.predicted_cached_tokens)
        series.cached_tokens.inc(end.cached_prompt_tokens)
    if end.ttft_ms is not None:
        series.first_token.observe((end.ttft_ms - end.queue_ms) / 1000)
        intervals = end.completion_tokens - 1
        if intervals > 0 and end.state == "complete":
            series.token_interval.observe((end.duration_ms - end.ttft_ms) / 1000 / intervals)


def keep_replicas(replicas: Iterable[UUID]) -> None:
    """Forget the counts of every other replica: each start of an engine may bring a new one."""
    kept = set(replicas)
    if all(replica in kept for _, replica in _of_replicas):
        return
    names = {str(each) for each in kept}
    for family in (_PREFIX_TOKENS, _REPLICA_FIRST_TOKEN, _REPLICA_TOKEN_INTERVAL):
        family.keep("replica", names)
    for key in [key for key in _of_replicas if key[1] not in kept]:
        del _of_replicas[key]


def cache_looked_up(level: CacheLevel, outcome: CacheLookup) -> None:
    """Count a lookup of a stored response."""
    _CACHE_LOOKUPS.labels(level, outcome).inc()


def cache_stored(outcome: CacheStore) -> None:
    """Count a response to store."""
    _CACHE_STORES.labels(outcome).inc()


def cache_evicted(level: CacheLevel, entries: int) -> None:
    """Count evicted responses."""
    if entries:
        _CACHE_EVICTIONS.labels(level).inc(entries)


def limit_rejected(reason: str) -> None:
    """Count a request that a limit or budget rejected."""
    _LIMIT_REFUSALS.labels(reason).inc()


def engine_failed(model: str, reason: EngineFailure) -> None:
    """Count an engine that failed a request."""
    _ENGINE_FAILURES.labels(model, reason).inc()


def retried(model: str) -> None:
    """Count a request that is retried on another replica."""
    _ENGINE_RETRIES.labels(model).inc()


@dataclass(frozen=True, slots=True)
class _Series:
    """The cached counters of one endpoint and model."""

    duration: Histogram
    first_token: Histogram
    prompt_tokens: Counter
    cached_prompt_tokens: Counter
    completion_tokens: Counter


@cache
def _series(endpoint: str, model: str) -> _Series:
    return _Series(
        duration=_DURATION.labels(endpoint, model),
        first_token=_FIRST_TOKEN.labels(model),
        prompt_tokens=_TOKENS.labels(model, "prompt"),
        cached_prompt_tokens=_TOKENS.labels(model, "cached_prompt"),
        completion_tokens=_TOKENS.labels(model, "completion"),
    )


@dataclass(frozen=True, slots=True)
class _ReplicaSeries:
    """The cached counters of one model's replica."""

    first_token: Histogram
    token_interval: Histogram
    prompt_tokens: Counter
    predicted_tokens: Counter
    cached_tokens: Counter


#: By model and replica, of the replicas that there are.
_of_replicas: dict[tuple[str, UUID], _ReplicaSeries] = {}


def _replica_series(model: str, replica_id: UUID) -> _ReplicaSeries:
    found = _of_replicas.get((model, replica_id))
    if found is None:
        replica = str(replica_id)
        found = _of_replicas[model, replica_id] = _ReplicaSeries(
            first_token=_REPLICA_FIRST_TOKEN.labels(model, replica),
            token_interval=_REPLICA_TOKEN_INTERVAL.labels(model, replica),
            prompt_tokens=_PREFIX_TOKENS.labels(model, replica, "prompt"),
            predicted_tokens=_PREFIX_TOKENS.labels(model, replica, "predicted"),
            cached_tokens=_PREFIX_TOKENS.labels(model, replica, "cached"),
        )
    return found


@cache
def _requests(endpoint: str, model: str, hundreds: int) -> Counter:
    return _REQUESTS.labels(endpoint, model, f"{hundreds}xx")


class ProcessMetrics(Collector):
    """The gauges of a running gateway process. ``snapshot_age`` returns None before the first snapshot."""

    def __init__(
        self,
        *,
        in_flight: Callable[[], int],
        snapshot_age: Callable[[], float | None],
        redis_breaker_open: Callable[[], bool],
    ) -> None:
        self._in_flight = in_flight
        self._snapshot_age = snapshot_age
        self._redis_breaker_open = redis_breaker_open

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; the snapshot's age is absent before the first one."""
        yield GaugeMetricFamily("hearth_gateway_in_flight_requests", "Requests being served.", self._in_flight())
        yield GaugeMetricFamily(
            "hearth_gateway_redis_breaker_open",
            "1 while the breaker to Redis is open.",
            self._redis_breaker_open(),
        )
        age = self._snapshot_age()
        if age is not None:
            yield GaugeMetricFamily(
                "hearth_gateway_snapshot_age_seconds", "Time since the gateway last read the database.", age
            )
