"""What a gateway process counts, for Prometheus.

Labels have few values by nature: endpoints, models, kinds. A tenant, a key or a project is never one. A request
passes here a few times and may spend 5 µs on it, so each combination of labels is looked up once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from billing.wal.records import End
from gateway.counters import Counter, CounterVec, Histogram, HistogramVec
from gateway.upstream.connection import ConnectFailed, ConnectionLost, ProtocolError, ReadTimeout, UpstreamError

#: Seconds: from an answer out of the prediction cache to a long generation.
DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
FIRST_TOKENS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: The levels of the prediction cache, what a look finds in one, and what comes of an answer that is to be stored.
CacheLevel = Literal["first", "redis"]
CacheLookup = Literal["hit", "miss", "stale", "altered", "no_stream"]
CacheStore = Literal["stored", "quota", "write_rate", "too_large", "incomplete", "failed"]

_REQUESTS = CounterVec(
    "hearth_gateway_requests",
    "Requests that were answered, refusals included; model is empty until it is known.",
    ("endpoint", "model", "status"),
)
_ANSWERS = CounterVec("hearth_gateway_answers", "Metered answers, by how they ended.", ("model", "state"))
_DURATION = HistogramVec(
    "hearth_gateway_request_duration_seconds",
    "From the arrival of a metered request to its last byte.",
    ("endpoint", "model"),
    bounds=DURATIONS,
)
_FIRST_TOKEN = HistogramVec(
    "hearth_gateway_time_to_first_token_seconds",
    "From the arrival of a streamed request to its first token, without answers from the prediction cache.",
    ("model",),
    bounds=FIRST_TOKENS,
)
_TOKENS = CounterVec("hearth_gateway_tokens", "Tokens of metered answers, in disjoint classes.", ("model", "kind"))
_CACHE = CounterVec(
    "hearth_gateway_cache_results",
    "What the prediction cache had for metered requests.",
    ("result", "reason"),
)
_CACHE_LOOKUPS = CounterVec(
    "hearth_gateway_cache_lookups",
    "Looks for a stored answer, by where and what came of it.",
    ("level", "outcome"),
)
_CACHE_STORES = CounterVec(
    "hearth_gateway_cache_stores", "Answers that were to be stored, by what came of it.", ("outcome",)
)
_CACHE_EVICTIONS = CounterVec(
    "hearth_gateway_cache_evictions",
    "Stored answers that made room for others.",
    ("level",),
)
CACHE_FIRST_LEVEL_BYTES = Gauge(
    "hearth_gateway_cache_first_level_bytes", "What a process has at hand of stored answers.", registry=None
)
_LIMIT_REFUSALS = PrometheusCounter(
    "hearth_gateway_limit_refusals", "Requests refused by a limit or a hard budget.", ("reason",), registry=None
)
_ENGINE_FAILURES = PrometheusCounter(
    "hearth_gateway_engine_failures",
    "Engines that failed a request, before or after its first byte.",
    ("model", "reason"),
    registry=None,
)
_ENGINE_RETRIES = PrometheusCounter(
    "hearth_gateway_engine_retries", "Requests sent to another replica.", ("model",), registry=None
)
REDIS_TURN_FAILURES = PrometheusCounter(
    "hearth_gateway_redis_turn_failures", "Times that Redis failed or was too slow.", registry=None
)
REDIS_BREAKER_OPENS = PrometheusCounter(
    "hearth_gateway_redis_breaker_opens", "Times that Redis was left alone for a while.", registry=None
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

#: For requests that wait for a replica: how many do now, and how long each waited, by what came of it.
QUEUED_REQUESTS = Gauge(
    "hearth_gateway_queued_requests", "Requests that wait for a replica.", ("model",), registry=None
)
QUEUE_SECONDS = PrometheusHistogram(
    "hearth_gateway_queue_seconds",
    "Time that requests waited for a replica.",
    ("model", "outcome"),
    buckets=(0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
    registry=None,
)


#: What a process that serves requests shows.
METRICS = (
    _REQUESTS,
    _ANSWERS,
    _DURATION,
    _FIRST_TOKEN,
    _TOKENS,
    _CACHE,
    _CACHE_LOOKUPS,
    _CACHE_STORES,
    _CACHE_EVICTIONS,
    CACHE_FIRST_LEVEL_BYTES,
    _LIMIT_REFUSALS,
    _ENGINE_FAILURES,
    _ENGINE_RETRIES,
    REDIS_TURN_FAILURES,
    REDIS_BREAKER_OPENS,
    PEER_CONNECTIONS,
    REMOTE_FLIGHTS,
    FLIGHT_TAKEOVERS,
    QUEUED_REQUESTS,
    QUEUE_SECONDS,
)


def answered(endpoint: str, model: str, status: int) -> None:
    """Count a request whose answer begins now, or that was refused."""
    _requests(endpoint, model, status // 100).inc()


def ended(endpoint: str, model: str, end: End) -> None:
    """Count what the usage record of a request says at its end."""
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
    _ANSWERS.labels(model, end.state).inc()
    _CACHE.labels(end.cache_result, end.cache_reason).inc()


def cache_looked_up(level: CacheLevel, outcome: CacheLookup) -> None:
    """Count a look for a stored answer."""
    _CACHE_LOOKUPS.labels(level, outcome).inc()


def cache_stored(outcome: CacheStore) -> None:
    """Count an answer that was to be stored."""
    _CACHE_STORES.labels(outcome).inc()


def cache_evicted(level: CacheLevel, entries: int) -> None:
    """Count stored answers that made room for others."""
    if entries:
        _CACHE_EVICTIONS.labels(level).inc(entries)


def limit_rejected(reason: str) -> None:
    """Count a request that a limit or budget refused; ``reason`` is what of it."""
    _LIMIT_REFUSALS.labels(reason).inc()


def engine_failed(model: str, failure: UpstreamError) -> None:
    """Count an engine that failed a request."""
    _ENGINE_FAILURES.labels(model, _reason(failure)).inc()


def retried(model: str) -> None:
    """Count a request that goes to another replica."""
    _ENGINE_RETRIES.labels(model).inc()


@dataclass(frozen=True, slots=True)
class _Series:
    """What is kept of one endpoint and model."""

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


@cache
def _requests(endpoint: str, model: str, hundreds: int) -> Counter:
    return _REQUESTS.labels(endpoint, model, f"{hundreds}xx")


def _reason(failure: UpstreamError) -> str:
    match failure:
        case ReadTimeout():
            return "timeout"
        case ConnectFailed():
            return "connect"
        case ConnectionLost() | ProtocolError():
            return "broken"
        case _:
            return "status"


class ProcessMetrics(Collector):
    """What a gateway process is doing at this moment. ``feed_age`` is None before the first view."""

    def __init__(
        self,
        *,
        in_flight: Callable[[], int],
        feed_age: Callable[[], float | None],
        redis_breaker_open: Callable[[], bool],
    ) -> None:
        self._in_flight = in_flight
        self._feed_age = feed_age
        self._redis_breaker_open = redis_breaker_open

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges; the feed's age is absent before its first view."""
        yield GaugeMetricFamily("hearth_gateway_in_flight_requests", "Requests being served.", self._in_flight())
        yield GaugeMetricFamily(
            "hearth_gateway_redis_breaker_open",
            "1 while Redis is left alone after failures.",
            self._redis_breaker_open(),
        )
        age = self._feed_age()
        if age is not None:
            yield GaugeMetricFamily(
                "hearth_gateway_feed_age_seconds", "Since the gateway last looked at the database.", age
            )
