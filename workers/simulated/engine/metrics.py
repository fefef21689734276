"""The engine's Prometheus page: vLLM's names, labels and units, as far as a simulation can count them."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SECONDS_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(slots=True)
class Histogram:
    """Counts per bucket, cumulative only when rendered."""

    bounds: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.total += value
        self.counts[bisect_left(self.bounds, value)] += 1


def _seconds() -> Histogram:
    return Histogram(SECONDS_BUCKETS)


def _tokens() -> Histogram:
    return Histogram(TOKEN_BUCKETS)


@dataclass(slots=True)
class Metrics:
    """All counts since the start. Prefix counters are in tokens."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    #: The part of the queries and hits above that host memory answers; and the hits of prompts with a first token.
    external_queries: int = 0
    external_hits: int = 0
    reloaded_prompt_tokens: int = 0
    #: Copies from host memory.
    reloaded_tokens: int = 0
    reload_seconds: float = 0.0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    first_token_seconds: Histogram = field(default_factory=_seconds)
    between_tokens_seconds: Histogram = field(default_factory=_seconds)
    queue_seconds: Histogram = field(default_factory=_seconds)
    prefill_seconds: Histogram = field(default_factory=_seconds)
    request_seconds: Histogram = field(default_factory=_seconds)
    request_prompt_tokens: Histogram = field(default_factory=_tokens)
    request_generation_tokens: Histogram = field(default_factory=_tokens)
    started_at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The values at the moment of the scrape."""

    running: int
    waiting: int
    max_running: int
    context_tokens: int
    cache_usage: float
    cache_config: Mapping[str, str]
    #: None without host memory.
    host: "HostGauges | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGauges:
    """The host memory for blocks: tokens that it holds at most, bytes of one token, tokens ever stored."""

    capacity_tokens: int
    bytes_per_token: int
    stored_tokens: int


def render(metrics: Metrics, gauges: Gauges, *, model: str) -> str:
    """Return the page in Prometheus' text format."""
    return "\n".join([*_lines(metrics, gauges, f'engine="0",model_name="{model}"'), ""])


def _lines(metrics: Metrics, gauges: Gauges, labels: str) -> Iterator[str]:
    yield from _single("process_start_time_seconds", "gauge", metrics.started_at, "")
    yield from _single("vllm:num_requests_running", "gauge", gauges.running, labels)
    yield from _single("vllm:num_requests_waiting", "gauge", gauges.waiting, labels)
    yield from _single("vllm:kv_cache_usage_perc", "gauge", gauges.cache_usage, labels)
    # vLLM has this from Hearth's middleware (workers/engines/in_engine).
    yield from _single("hearth_engine_max_requests", "gauge", gauges.max_running, "")
    yield from _single("hearth_engine_context_tokens", "gauge", gauges.context_tokens, "")
    states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    yield from _family("vllm:engine_sleep_state", "gauge", "sleep_state", states, labels)
    yield from _single("vllm:prefix_cache_queries_total", "counter", metrics.prefix_queries, labels)
    yield from _single("vllm:prefix_cache_hits_total", "counter", metrics.prefix_hits, labels)
    yield from _single("vllm:external_prefix_cache_queries_total", "counter", metrics.external_queries, labels)
    yield from _single("vllm:external_prefix_cache_hits_total", "counter", metrics.external_hits, labels)
    yield from _single("vllm:num_preemptions_total", "counter", 0, labels)
    yield from _single("vllm:prompt_tokens_total", "counter", metrics.prompt_tokens, labels)
    computed = metrics.prompt_tokens - metrics.cached_prompt_tokens
    sources = {
        "local_compute": computed,
        "local_cache_hit": metrics.cached_prompt_tokens - metrics.reloaded_prompt_tokens,
        "external_kv_transfer": metrics.reloaded_prompt_tokens,
    }
    yield from _family("vllm:prompt_tokens_by_source_total", "counter", "source", sources, labels)
    yield from _single("vllm:prompt_tokens_cached_total", "counter", metrics.cached_prompt_tokens, labels)
    tiers = {"device": metrics.prefix_hits, "host": metrics.external_hits}
    yield from _family("vllm:prompt_tokens_cached_by_source_total", "counter", "source", tiers, labels)
    if gauges.host is not None:
        yield from _host_lines(metrics, gauges.host, labels)
    yield from _single("vllm:generation_tokens_total", "counter", metrics.generation_tokens, labels)
    yield from _family("vllm:request_success_total", "counter", "finished_reason", metrics.finished, labels)
    for name, histogram in (
        ("vllm:request_prompt_tokens", metrics.request_prompt_tokens),
        ("vllm:request_generation_tokens", metrics.request_generation_tokens),
        ("vllm:time_to_first_token_seconds", metrics.first_token_seconds),
        ("vllm:inter_token_latency_seconds", metrics.between_tokens_seconds),
        ("vllm:e2e_request_latency_seconds", metrics.request_seconds),
        ("vllm:request_queue_time_seconds", metrics.queue_seconds),
        ("vllm:request_prefill_time_seconds", metrics.prefill_seconds),
    ):
        yield from _histogram(name, histogram, labels)
    config = ",".join(f'{name}="{value}"' for name, value in sorted(gauges.cache_config.items()))
    yield from _single("vllm:cache_config_info", "gauge", 1, f'{config},engine="0"')


def _host_lines(metrics: Metrics, host: HostGauges, labels: str) -> Iterator[str]:
    # vLLM has this, too, from Hearth's middleware.
    yield from _single("hearth_engine_host_cache_tokens", "gauge", host.capacity_tokens, "")
    loaded, stored = (tokens * host.bytes_per_token for tokens in (metrics.reloaded_tokens, host.stored_tokens))
    yield from _single("vllm:kv_offload_load_bytes_total", "counter", loaded, labels)
    yield from _single("vllm:kv_offload_load_time_total", "counter", metrics.reload_seconds, labels)
    yield from _single("vllm:kv_offload_store_bytes_total", "counter", stored, labels)


def _single(name: str, kind: str, value: float, labels: str) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {float(value)}"


def _family(name: str, kind: str, label: str, values: Mapping[str, int], labels: str) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    for key, value in values.items():
        yield f'{name}{{{label}="{key}",{labels}}} {float(value)}'


def _histogram(name: str, histogram: Histogram, labels: str) -> Iterator[str]:
    yield f"# TYPE {name} histogram"
    count = 0
    for bound, hits in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        count += hits
        yield f'{name}_bucket{{{labels},le="{bound}"}} {float(count)}'
    yield f"{name}_count{{{labels}}} {float(count)}"
    yield f"{name}_sum{{{labels}}} {histogram.total}"
