"""The spans of requests, as a receiver of OTLP gets them: their order, their names, and what they never contain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import orjson
import pytest
from django.conf import LazySettings
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes

from gateway import metrics
from gateway.pipeline.handler import Pipeline
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.request import Request
from gateway.request_trace import MOST_STAGES, RequestTrace
from tenants.policy.limits import LimitValues, set_limit
from tenants.policy.policy_target import PolicyTarget
from tests.gateway.fixtures.otlp_receiver import OtlpReceiver, Received
from tests.gateway.fixtures.scripted_app import CHUNKS, after, delta, events, hang_up, hello, streaming
from tests.gateway.fixtures.tenants import DOORS, HELLO, MODEL, STREAMED, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

#: What prompts and answers of these tests contain, and no span may.
SECRET_PROMPT, SECRET_ANSWER = "xylophone-prompt", "xylophone-answer"
ASKED: dict[str, Any] = {**HELLO, "messages": [{"role": "user", "content": SECRET_PROMPT}]}


@pytest.fixture(autouse=True)
async def receiver(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OtlpReceiver]:
    """A receiver that the gateway, which starts after it, sends every trace to."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=for-the-receiver")
    found = OtlpReceiver()
    await found.start()
    settings.TRACES_URL, settings.TRACES_RATIO = found.url, 1.0
    yield found
    await found.stop()


async def spans(receiver: OtlpReceiver, request_id: str) -> list[Received]:
    """Return the spans of a request, the first one its own, once all have arrived."""
    await until(lambda: any(not each.parent_id for each in receiver.of(request_id)))
    return receiver.of(request_id)


def names(found: list[Received]) -> list[str]:
    return [each.name for each in found]


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_a_request_is_one_span_with_a_child_for_each_stage(gateway: Gateway, receiver: OtlpReceiver) -> None:
    got = await gateway.ask(ASKED)
    request_id = got.answer_headers["x-request-id"]
    root, *stages = await spans(receiver, request_id)
    assert root.trace_id == request_id.replace("-", "")
    assert (root.name, root.span.kind) == ("POST /v1/chat/completions", Span.SPAN_KIND_SERVER)
    assert names(stages) == ["authenticate and parse", "admission", "coalescing", f"chat {MODEL}"]
    assert {each.parent_id for each in stages} == {root.span_id}
    (end,) = gateway.ends()
    assert end.traced
    (engine,) = [each for each in gateway.engines if each.bodies]
    world = gateway.world
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "hearth.request.id": request_id,
        "hearth.tenant.id": str(world.acme.tenant.id),
        "hearth.project.id": str(world.acme.project.id),
        "hearth.state": "complete",
        "hearth.cache.result": "miss",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "hearth",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
    }
    call = stages[-1]
    seconds = call.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < seconds * 1e9 <= call.span.end_time_unix_nano - call.span.start_time_unix_nano
    assert call.span.kind == Span.SPAN_KIND_CLIENT
    assert {name: value for name, value in call.attributes.items() if name.startswith(("server.", "hearth."))} == {
        "server.address": "127.0.0.1",
        "server.port": engine.port,
        "hearth.replica.id": str(end.replica_id),
        "hearth.deployment": "demo",
        "hearth.route.reason": end.route_reason,
    }
    assert engine.headers[0]["traceparent"] == f"00-{root.trace_id}-{call.span_id}-01"
    assert root.resource["service.name"].startswith("hearth-")
    assert receiver.headers[0]["x-token"] == "for-the-receiver"
    assert not root.failed
    assert not call.failed
    for each in stages:
        assert root.span.start_time_unix_nano <= each.span.start_time_unix_nano
        assert each.span.start_time_unix_nano <= each.span.end_time_unix_nano <= root.span.end_time_unix_nano


async def test_names_of_the_conventions_are_spelled_as_they_spell_them(
    gateway: Gateway, receiver: OtlpReceiver
) -> None:
    gateway.engines[0].say = hang_up
    got = await gateway.ask({**STREAMED, "temperature": 1})
    await gateway.ask({"model": "nothing"})
    await spans(receiver, got.answer_headers["x-request-id"])
    modules = (gen_ai_attributes, error_attributes, http_attributes, server_attributes)
    known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    used = {name for each in receiver.received for name in each.attributes}
    assert {name for name in used if not name.startswith("hearth.")} <= known
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert {each.attributes.get("gen_ai.operation.name", "chat") for each in receiver.received} <= operations


async def test_a_stream_is_traced_to_its_last_byte(gateway: Gateway, receiver: OtlpReceiver) -> None:
    gateway.let_all_say(streaming(events(), pause_seconds=0.01))
    got = await gateway.ask(STREAMED)
    root, *stages = await spans(receiver, got.answer_headers["x-request-id"])
    assert names(stages) == ["authenticate and parse", "admission", "coalescing", f"chat {MODEL}", "stream"]
    call, sent = stages[-2:]
    assert root.attributes["gen_ai.request.stream"] is True
    assert root.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert sent.span.start_time_unix_nano >= call.span.start_time_unix_nano
    assert root.span.end_time_unix_nano >= max(call.span.end_time_unix_nano, sent.span.end_time_unix_nano)
    assert call.span.end_time_unix_nano > sent.span.start_time_unix_nano


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
async def test_a_cache_hit_calls_no_engine(gateway: Gateway, receiver: OtlpReceiver, body: dict[str, Any]) -> None:
    first, from_redis, local = [await gateway.ask(each) for each in (HELLO, body, body)]
    for hit, lookup in ((from_redis, ["cache lookup"]), (local, [])):
        root, *stages = await spans(receiver, hit.answer_headers["x-request-id"])
        assert names(stages) == ["authenticate and parse", "admission", *lookup]
        assert root.attributes["hearth.cache.result"] == "hit"
        assert root.attributes["hearth.source_request.id"] == first.answer_headers["x-request-id"]
        assert (root.attributes["gen_ai.usage.input_tokens"], root.attributes["gen_ai.usage.output_tokens"]) == (0, 0)


async def test_a_follower_names_the_request_that_it_followed(gateway: Gateway, receiver: OtlpReceiver) -> None:
    released = asyncio.Event()
    gateway.let_all_say(after(released))
    first = asyncio.ensure_future(gateway.ask(HELLO))
    await until(gateway.bodies)
    second = asyncio.ensure_future(gateway.ask(HELLO))
    await until(lambda: any(each.cache_result == "coalesced" for each in gateway.starts()))
    released.set()
    led, followed = await first, await second
    root, *stages = await spans(receiver, followed.answer_headers["x-request-id"])
    assert names(stages) == ["authenticate and parse", "admission", "coalescing"]
    assert root.attributes["hearth.cache.result"] == "coalesced"
    assert root.attributes["hearth.source_request.id"] == led.answer_headers["x-request-id"]


async def test_each_engine_that_was_tried_has_a_span(gateway: Gateway, receiver: OtlpReceiver) -> None:
    async def hang_up_once(request: Any, body: dict[str, Any]) -> Any:
        gateway.let_all_say(hello)
        return await hang_up(request, body)

    gateway.let_all_say(hang_up_once)
    got = await gateway.ask({**HELLO, "temperature": 1})
    root, *stages = await spans(receiver, got.answer_headers["x-request-id"])
    failed, served = stages[-2:]
    assert (failed.failed, failed.attributes["error.type"]) == (True, "broken")
    assert (served.failed, served.attributes["hearth.engine.retry"]) == (False, 1)
    assert root.attributes["hearth.engine.retries"] == 1
    assert failed.attributes["hearth.replica.id"] != served.attributes["hearth.replica.id"]
    sent = {engine.headers[0]["traceparent"] for engine in gateway.engines}
    assert sent == {f"00-{root.trace_id}-{each.span_id}-01" for each in (failed, served)}
    assert not root.failed


async def test_a_request_that_waits_for_a_replica_has_a_queue_span(gateway: Gateway, receiver: OtlpReceiver) -> None:
    gateway.let_all_say(hang_up)
    asking = asyncio.ensure_future(gateway.ask({**HELLO, "temperature": 1}))
    await until(lambda: gateway.held() or asking.done())
    gateway.let_all_say(hello)
    got = await asking
    _, *stages = await spans(receiver, got.answer_headers["x-request-id"])
    assert "queue" in names(stages)
    assert len([each for each in stages if each.name == f"chat {MODEL}"]) >= 2


def test_a_request_that_waits_for_an_hour_records_no_more_than_a_few_stages() -> None:
    trace = RequestTrace(trace_id=1, span_id=2, method="POST", route="/", client_traceparent="", stages=[])
    for _ in range(3600):
        trace.enter("queue")
    assert len(trace.stages) == 1
    for _ in range(3600):
        trace.enter("coalescing")
        trace.enter("queue")
    assert len(trace.stages) == MOST_STAGES and trace.stages[-1].ended is None


async def test_a_refusal_has_its_code(gateway: Gateway, receiver: OtlpReceiver) -> None:
    got = await gateway.ask({**HELLO, "model": SECRET_PROMPT})
    (root, only) = await spans(receiver, got.answer_headers["x-request-id"])
    assert only.name == "authenticate and parse"
    assert (root.attributes["http.response.status_code"], root.attributes["error.type"]) == (404, "model_not_found")
    assert "gen_ai.request.model" not in root.attributes
    assert not root.failed  # the client can change that
    await in_database(
        lambda: set_limit(
            OPERATOR,
            PolicyTarget(tenant=gateway.world.acme.tenant),
            LimitValues(requests_per_minute=1),
        )
    )
    await until(lambda: gateway.caller().limits)
    limited = [await gateway.ask() for _ in range(2)][-1]
    root, *stages = await spans(receiver, limited.answer_headers["x-request-id"])
    assert (limited.status, root.attributes["http.response.status_code"]) == (429, 429)
    assert names(stages) == ["authenticate and parse", "admission"]
    assert root.attributes["error.type"] == limited.error["code"]


async def test_a_request_without_a_valid_key_leaves_no_trace(gateway: Gateway, receiver: OtlpReceiver) -> None:
    for key in ("", "hk_nobody"):
        assert (await gateway.ask(key=key)).status == 401
    known = await gateway.ask()
    await spans(receiver, known.answer_headers["x-request-id"])
    assert {each.trace_id for each in receiver.received} == {known.answer_headers["x-request-id"].replace("-", "")}


async def test_a_client_that_leaves_ends_its_trace(gateway: Gateway, receiver: OtlpReceiver) -> None:
    gateway.let_all_say(streaming(events()[:2], then_wait=True))
    exchange = gateway.exchange(STREAMED)
    running = asyncio.ensure_future(exchange.run())
    await until(lambda: len(exchange.sent) > 1)
    exchange.disconnect.set()
    await running
    root, *stages = await spans(receiver, exchange.answer_headers["x-request-id"])
    assert root.attributes["hearth.state"] == "client_gone"
    assert names(stages)[-2:] == [f"chat {MODEL}", "stream"]


async def test_a_client_that_leaves_before_the_first_byte_ends_its_trace_too(
    gateway: Gateway, receiver: OtlpReceiver
) -> None:
    gateway.let_all_say(after(asyncio.Event()))
    exchange = gateway.exchange(HELLO)
    running = asyncio.ensure_future(exchange.run())
    await until(gateway.bodies)
    exchange.disconnect.set()
    await running
    (start,) = gateway.starts()
    root, *stages = await spans(receiver, str(start.request_id))
    assert (root.attributes["http.response.status_code"], root.attributes["hearth.state"]) == (499, "client_gone")
    assert (stages[-1].failed, stages[-1].attributes["error.type"]) == (True, "cancelled")


async def test_an_engine_that_breaks_a_stream_makes_it_an_error(gateway: Gateway, receiver: OtlpReceiver) -> None:
    gateway.let_all_say(streaming(events()[:2], cut=True))
    got = await gateway.ask(STREAMED)
    root, *_ = await spans(receiver, got.answer_headers["x-request-id"])
    assert (root.failed, root.attributes["error.type"]) == (True, "engine_failed_mid_stream")


async def test_a_clients_traceparent_is_a_link_and_no_parent(gateway: Gateway, receiver: OtlpReceiver) -> None:
    theirs = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    sent = {"traceparent": "-".join(("00", *theirs, "01")), "tracestate": SECRET_PROMPT, "baggage": SECRET_PROMPT}
    got = await gateway.ask(HELLO, headers=sent)
    root, *_ = await spans(receiver, got.answer_headers["x-request-id"])
    assert (root.trace_id, root.parent_id) == (got.answer_headers["x-request-id"].replace("-", ""), "")
    assert root.links == [theirs]
    for broken in ("", "00", "00-0-0-01", f"00-{'0' * 32}-{'0' * 16}-01", "x" * 5000):
        got = await gateway.ask({**HELLO, "temperature": 1}, headers={"traceparent": broken})
        root, *_ = await spans(receiver, got.answer_headers["x-request-id"])
        assert root.links == []
    (headers, *_) = [engine.headers[0] for engine in gateway.engines if engine.headers]
    assert "tracestate" not in headers
    assert "baggage" not in headers
    assert not any(SECRET_PROMPT.encode() in body for body in receiver.bodies)


async def test_no_byte_of_a_prompt_an_answer_or_a_key_is_sent(gateway: Gateway, receiver: OtlpReceiver) -> None:
    chunks = [CHUNKS[0], delta(SECRET_ANSWER), *CHUNKS[3:]]
    gateway.let_all_say(streaming(events(chunks)))
    asked = {
        **ASKED,
        "stream": True,
        "stop": [SECRET_PROMPT],
        "user": SECRET_PROMPT,
        "tools": [{"type": "function", "function": {"name": SECRET_PROMPT, "parameters": {}}}],
    }
    headers = {"x-session-id": SECRET_PROMPT, "x-request-id": SECRET_PROMPT, "user-agent": SECRET_PROMPT}
    got = await gateway.ask(asked, headers=headers)
    assert SECRET_ANSWER.encode() in got.body
    refused = await gateway.ask({**ASKED, "temperature": SECRET_PROMPT})
    assert SECRET_PROMPT in refused.error["message"] or refused.status == 400
    unknown = await gateway.ask(path=f"/v1/{SECRET_PROMPT}")
    for each in (got, refused):
        await spans(receiver, each.answer_headers["x-request-id"])
    assert unknown.status == 404
    sent = b"".join(receiver.bodies)
    world = gateway.world
    for secret in (SECRET_PROMPT, SECRET_ANSWER, world.acme.secret, world.acme.secret[3:20]):
        assert secret.encode() not in sent
    assert not any(engine.headers[0]["authorization"].encode() in sent for engine in gateway.engines if engine.headers)
    assert not any(body["cache_salt"].encode() in sent for body in gateway.bodies())


async def test_a_deferred_request_is_traced_when_it_runs_too(gateway: Gateway, receiver: OtlpReceiver) -> None:
    accepted = await gateway.ask(HELLO, headers={"prefer": "respond-async"})
    request_id = accepted.answer_headers["x-request-id"]
    await spans(receiver, request_id)
    assert await _run_deferred(gateway, UUID(request_id)) == 200
    await until(lambda: any(each.span.kind == Span.SPAN_KIND_CONSUMER for each in receiver.of(request_id)))
    (run,) = [each for each in receiver.of(request_id) if each.span.kind == Span.SPAN_KIND_CONSUMER]
    assert run.attributes["hearth.tenant.id"] == str(gateway.world.acme.tenant.id)
    assert run.attributes["gen_ai.usage.output_tokens"] == 3


async def test_a_share_of_the_requests_is_traced_and_the_others_carry_nothing(
    gateway: Gateway, receiver: OtlpReceiver
) -> None:
    tracer = gateway.runtime.components.tracer
    assert tracer is not None
    tracer._limit = 1 << 31  # a half
    asked = [await gateway.ask({**HELLO, "temperature": 1, "seed": n}) for n in range(24)]
    traced = {
        headers["traceparent"][3:35]
        for engine in gateway.engines
        for headers in engine.headers
        if "traceparent" in headers
    }
    assert 0 < len(traced) < 24  # by chance in all but one of 8 million runs
    await until(lambda: {each.trace_id for each in receiver.received} >= traced)
    chosen = {
        each.answer_headers["x-request-id"].replace("-", "")
        for each in asked
        if UUID(each.answer_headers["x-request-id"]).int % (1 << 32) < 1 << 31
    }
    assert {each.trace_id for each in receiver.received} == traced == chosen
    assert {each.request_id.hex for each in gateway.ends() if each.traced} == traced


async def test_a_receiver_that_does_not_answer_costs_traces_and_no_request(
    gateway: Gateway, receiver: OtlpReceiver
) -> None:
    sender: Any = gateway.runtime.components.tracer._spans  # type: ignore[union-attr]
    sender._queue_spans = 12
    before = _counted()
    receiver.released.clear()
    await gateway.ask(HELLO)
    await until(lambda: receiver.arrived == 1)
    answers = [await gateway.ask({**HELLO, "temperature": 1, "seed": n}) for n in range(8)]
    assert [each.status for each in answers] == [200] * 8
    await until(lambda: sender._queued - sender._exporter.taken <= 12)
    dropped = _counted()["dropped"] - before["dropped"]
    assert dropped >= 5  # spans of one request at least
    receiver.released.set()
    await until(lambda: sum(_counted().values()) - sum(before.values()) == dropped + len(receiver.received))
    assert len({each.trace_id for each in receiver.received}) == sum(not each.parent_id for each in receiver.received)


@pytest.mark.parametrize("status", [400, 401])
async def test_what_a_receiver_refuses_is_counted(gateway: Gateway, receiver: OtlpReceiver, status: int) -> None:
    before = _counted()["failed"]
    receiver.status = status
    assert (await gateway.ask(HELLO)).status == 200
    await until(lambda: _counted()["failed"] - before == 5)


async def test_a_receiver_that_is_gone_delays_neither_requests_nor_the_end(
    gateway: Gateway, receiver: OtlpReceiver
) -> None:
    await receiver.stop()
    for n in range(3):
        assert (await gateway.ask({**HELLO, "temperature": 1, "seed": n})).status == 200
    # The fixture closes the gateway, which gives up on its spans after two seconds.


async def test_a_trace_that_cannot_be_made_fails_no_request(
    gateway: Gateway, receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    sender: Any = gateway.runtime.components.tracer._spans  # type: ignore[union-attr]
    sender._tracer = None
    assert (await gateway.ask(HELLO)).status == 200
    assert "is lost" in caplog.text


async def _run_deferred(gateway: Gateway, request_id: UUID) -> int:
    """Run an accepted request as the inference role does; return its status."""
    path = "/v1/chat/completions"
    request = Request(method="POST", path=path, headers={}, body=orjson.dumps(HELLO))
    pipeline: Pipeline = gateway.runtime.pipeline
    attempt = await pipeline.run_deferred(request_id, gateway.world.acme.key.public_id, ENDPOINTS[path], request)
    await attempt.log.commit()
    return attempt.response.status


def _counted() -> dict[str, float]:
    return {outcome: metrics.TRACE_SPANS.labels(outcome)._value.get() for outcome in ("sent", "failed", "dropped")}
