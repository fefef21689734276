"""How probe results change an engine's state, how its metrics are read, and how long to wait after a failure."""

from __future__ import annotations

import pytest

from workers.agent.probes.health import FAILED_CANARIES, SUSPECT_REPORTS, UNHEALTHY_REPORTS, Health, Verdict
from workers.agent.probes.http_probe import EngineCounters, EngineLoad, ProbeResult, parse_load
from workers.agent.probes.recent_times import RecentTimes, Times, Totals
from workers.agent.timeouts import Timeouts, backoff_seconds
from workers.serving.canary import CanaryResult

WELL = ProbeResult(healthy=True)
ILL = ProbeResult(healthy=False, problem="no answer in time")
ANSWERED = ProbeResult(healthy=True, canary=CanaryResult(finished_at_ns=1, status=200, completion_tokens=1))
SILENT = ProbeResult(healthy=True, canary=CanaryResult(finished_at_ns=1, status=0, problem="no answer in time"))


def test_an_engine_warms_once_healthy_and_is_ready_once_it_answered() -> None:
    health = Health()
    assert health.judge("starting", ILL) is None
    assert health.judge("starting", WELL) == Verdict("warming", "it answers /health")
    assert health.judge("warming", WELL) is None
    assert health.judge("warming", SILENT) is None
    assert health.judge("warming", ANSWERED) == Verdict("ready", "its first canary came back")


def test_a_ready_engine_is_suspect_only_after_failures_in_a_row() -> None:
    health = Health()
    for _ in range(3):
        verdicts = [health.judge("ready", ILL) for _ in range(UNHEALTHY_REPORTS - 1)]
        assert verdicts == [None] * (UNHEALTHY_REPORTS - 1)
        assert health.judge("ready", WELL) is None
    verdicts = [health.judge("ready", ILL) for _ in range(UNHEALTHY_REPORTS)]
    assert verdicts[-1] == Verdict("suspect", "/health: no answer in time")


def test_health_between_two_silent_canaries_excuses_nothing() -> None:
    health = Health()
    for _ in range(FAILED_CANARIES - 1):
        assert health.judge("ready", SILENT) is None
        assert health.judge("ready", WELL) is None
    assert health.judge("ready", SILENT) == Verdict("suspect", "canary: no answer in time")


def test_a_suspect_engine_must_answer_or_go() -> None:
    health = Health()
    assert health.judge("suspect", ANSWERED) == Verdict("ready", "it answers again")
    verdicts = [health.judge("suspect", SILENT) for _ in range(SUSPECT_REPORTS)]
    assert verdicts == [None, Verdict("backoff", "canary: no answer in time")]


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 2), (2, 4), (5, 32), (6, 60), (400, 60)])
def test_waits_double_up_to_a_minute_and_jitter_by_a_fifth(attempts: int, seconds: float) -> None:
    timeouts = Timeouts()
    assert backoff_seconds(timeouts, attempts, 0.5) == pytest.approx(seconds)
    assert backoff_seconds(timeouts, attempts, 0.0) == pytest.approx(0.8 * seconds)
    assert backoff_seconds(timeouts, attempts, 1.0) == pytest.approx(1.2 * seconds)


def test_load_is_read_from_the_engines_metrics() -> None:
    page = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+03
vllm:generation_tokens_total{engine="0",model_name="m"} 24.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_queries_total{engine="0"} 4000.0
vllm:prefix_cache_hits_total{engine="0"} 1000.0
vllm:time_to_first_token_seconds_bucket{le="0.5",engine="0"} 4.0
vllm:time_to_first_token_seconds_count{engine="0"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0"} 1.5
vllm:cache_config_info{block_size="16",hash_block_size="8",mamba_block_size="None",num_gpu_blocks="200",engine="0"} 1.0
vllm:cache_config_info{block_size="16",hash_block_size="8",mamba_block_size="None",num_gpu_blocks="200",engine="1"} 1.0
hearth_engine_max_requests 256.0
hearth_engine_host_cache_tokens 1.2e+06
hearth_engine_context_tokens 131072.0
"""
    assert parse_load(page) == EngineLoad(
        running=3,
        waiting=2,
        kv_usage=0.25,
        tokens=1024,
        cache_tokens=3200,
        max_requests=256,
        host_cache_tokens=1_200_000,
        context_tokens=131_072,
        totals=Totals(prompt_tokens=4000, cached_tokens=1000, first_tokens=4, first_token_seconds=1.5),
        counters=EngineCounters(prompt_tokens=1000, completion_tokens=24),
    )
    hybrid = 'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="5000",num_gpu_blocks="200",engine="0"} 1.0'
    found = parse_load(f"{page}{hybrid}\n")
    assert found is not None
    assert found.cache_tokens == 5000
    silent = "vllm:num_requests_running 1.0\nvllm:num_requests_waiting 0.0\n"
    assert parse_load(silent) == EngineLoad(
        running=1, waiting=0, kv_usage=0.0, tokens=0, cache_tokens=None, max_requests=None, context_tokens=None
    )
    assert parse_load("process_cpu_seconds_total 1.0") is None
    for number in ("1e12", "1e999", "0", "1.2.3"):
        assert parse_load(f"{silent}hearth_engine_context_tokens {number}\n") == parse_load(silent)


def test_recent_times_are_means_of_the_last_minute() -> None:
    recent = RecentTimes()
    assert recent.times() == Times()
    for second in range(121):  # each second one first token after 0.2 s, later 0.4 s, and nothing else
        late = max(0, second - 60)
        recent.add(second, Totals(first_tokens=second, first_token_seconds=0.2 * second + 0.2 * late))
    assert recent.times() == Times(ttft_seconds=0.4)
    recent.add(121, Totals(first_tokens=120, first_token_seconds=36.0, prompt_tokens=50, cached_tokens=20))
    assert recent.times().prefix_hit_share == 0.4
    for second in (180, 190, 240, 250, 300, 310):
        recent.add(second, Totals(first_tokens=120, first_token_seconds=36.0, prompt_tokens=50, cached_tokens=20))
    assert recent.times() == Times(), "an idle minute has no mean"
