"""The gateway's metrics, label by label."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from billing.wal.records import End
from gateway import metrics
from gateway.upstream.connection import ConnectFailed, ConnectionLost, ProtocolError, ReadTimeout, UpstreamError
from gateway.upstream.dispatcher import WrongStatus
from tenants.ids import ReplicaId, RequestId, new_id


@pytest.fixture
def registry() -> CollectorRegistry:
    shown = CollectorRegistry()
    for metric in metrics.METRICS:
        shown.register(metric)
    return shown


def end(**changes: object) -> End:
    """Return the end of a streamed answer of 5 + 4 prompt and 7 completion tokens."""
    facts: dict[str, object] = {
        "request_id": RequestId(new_id()),
        "finished_at_ns": 1,
        "state": "complete",
        "http_status": 200,
        "cache_result": "miss",
        "cache_reason": "",
        "route_reason": "prefix",
        "replica_id": None,
        "prompt_tokens": 5,
        "cached_prompt_tokens": 4,
        "completion_tokens": 7,
        "tokens_source": "engine",
        "avoided_prompt_tokens": 0,
        "avoided_completion_tokens": 0,
        "ttft_ms": 30.0,
        "duration_ms": 400.0,
    }
    return End(**(facts | changes))  # type: ignore[arg-type]


def test_an_answer_is_counted_with_its_tokens_and_times(registry: CollectorRegistry) -> None:
    model = f"model-{new_id()}"
    metrics.ended("/v1/completions", model, end())
    metrics.ended("/v1/completions", model, end(state="client_gone", ttft_ms=None, completion_tokens=1))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"model": model, **labels})

    assert value("hearth_gateway_answers_total", state="complete") == 1
    assert value("hearth_gateway_answers_total", state="client_gone") == 1
    kinds = ("prompt", "cached_prompt", "completion")
    assert [value("hearth_gateway_tokens_total", kind=kind) for kind in kinds] == [10, 8, 8]
    duration = "hearth_gateway_request_duration_seconds"
    assert value(f"{duration}_sum", endpoint="/v1/completions") == 0.8
    assert value(f"{duration}_bucket", endpoint="/v1/completions", le="0.25") == 0
    assert value(f"{duration}_bucket", endpoint="/v1/completions", le="0.5") == 2
    assert value("hearth_gateway_time_to_first_token_seconds_count") == 1
    assert value("hearth_gateway_time_to_first_token_seconds_sum") == 0.03


def test_times_are_counted_by_replica_while_it_exists(registry: CollectorRegistry) -> None:
    model, replicas = f"model-{new_id()}", [ReplicaId(new_id()) for _ in range(2)]
    for replica in replicas:
        metrics.ended("/v1/completions", model, end(replica_id=replica, queue_ms=10.0))
    metrics.ended("/v1/completions", model, end(replica_id=replicas[0], state="client_gone"))
    metrics.ended("/v1/completions", model, end(replica_id=replicas[0], completion_tokens=1))
    for result in ("hit", "coalesced"):
        metrics.ended("/v1/completions", model, end(replica_id=replicas[0], cache_result=result))

    def value(name: str, replica: ReplicaId) -> float | None:
        found = registry.get_sample_value(f"hearth_gateway_replica_{name}", {"model": model, "replica": str(replica)})
        return None if found is None else round(found, 6)

    first, interval = "time_to_first_token_seconds", "time_per_output_token_seconds"
    assert [value(f"{first}_count", replica) for replica in replicas] == [3, 1]
    assert value(f"{first}_sum", replicas[1]) == 0.02
    assert [value(f"{interval}_count", replica) for replica in replicas] == [1, 1]
    assert value(f"{interval}_sum", replicas[1]) == round(0.37 / 6, 6)
    metrics.keep_replicas(replicas[1:])
    assert [value(f"{first}_count", replica) for replica in replicas] == [None, 1]
    metrics.ended("/v1/completions", model, end(replica_id=replicas[0]))  # a request that ran while it left
    assert value(f"{first}_count", replicas[0]) == 1
    metrics.keep_replicas([])
    assert [value(f"{interval}_count", replica) for replica in replicas] == [None, None]


def test_expected_and_cached_tokens_are_counted_by_replica_while_it_exists(registry: CollectorRegistry) -> None:
    model, replicas = f"model-{new_id()}", [ReplicaId(new_id()) for _ in range(2)]
    for replica in (*replicas, replicas[0]):
        metrics.ended("/v1/completions", model, end(replica_id=replica, predicted_cached_tokens=6))
    metrics.ended("/v1/completions", model, end(replica_id=replicas[0]))  # the engine did not count its prompt

    def counted(replica: ReplicaId) -> list[float | None]:
        name = "hearth_gateway_prefix_tokens_total"
        return [
            registry.get_sample_value(name, {"model": model, "replica": str(replica), "kind": kind})
            for kind in ("prompt", "predicted", "cached")
        ]

    assert [counted(replica) for replica in replicas] == [[18, 12, 8], [9, 6, 4]]
    metrics.keep_replicas(replicas[1:])
    assert [counted(replica) for replica in replicas] == [[None] * 3, [9, 6, 4]]


def test_a_request_is_counted_by_the_hundreds_of_its_status(registry: CollectorRegistry) -> None:
    model = f"model-{new_id()}"
    for status in (200, 201, 404, 429, 502):
        metrics.answered("/v1/completions", model, status)
    found = {
        status: registry.get_sample_value(
            "hearth_gateway_requests_total", {"endpoint": "/v1/completions", "model": model, "status": status}
        )
        for status in ("2xx", "3xx", "4xx", "5xx")
    }
    assert found == {"2xx": 2, "3xx": None, "4xx": 2, "5xx": 1}


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ReadTimeout(600.0), "timeout"),
        (ConnectFailed(), "connect"),
        (ConnectionLost("reset", after_first_byte=False), "broken"),
        (ProtocolError(), "broken"),
        (WrongStatus(500), "status"),
    ],
)
def test_every_failure_of_an_engine_has_one_of_a_few_reasons(
    registry: CollectorRegistry, failure: UpstreamError, reason: str
) -> None:
    model = f"model-{new_id()}"
    metrics.engine_failed(model, failure.reason)
    labels = {"model": model, "reason": reason}
    assert registry.get_sample_value("hearth_gateway_engine_failures_total", labels) == 1


def test_the_feed_has_no_age_before_its_first_view() -> None:
    age: float | None = None
    registry = CollectorRegistry()
    registry.register(
        metrics.ProcessMetrics(in_flight=lambda: 3, snapshot_age=lambda: age, redis_breaker_open=lambda: True)
    )
    assert registry.get_sample_value("hearth_gateway_snapshot_age_seconds") is None
    age = 0.5
    assert registry.get_sample_value("hearth_gateway_snapshot_age_seconds") == 0.5
    assert registry.get_sample_value("hearth_gateway_in_flight_requests") == 3
    assert registry.get_sample_value("hearth_gateway_redis_breaker_open") == 1


def test_no_label_can_name_a_tenant() -> None:
    names = {label for metric in metrics.METRICS for label in metric._labelnames}
    assert names == {"endpoint", "model", "status", "state", "kind", "result", "reason", "outcome", "level", "replica"}
