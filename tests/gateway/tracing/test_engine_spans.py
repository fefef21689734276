"""A real vLLM engine's span is in the trace of the gateway's request, below the call of that engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from django.conf import LazySettings

from tests.engines.replica import Replica as Engine
from tests.engines.replica import running
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.otlp_receiver import OtlpReceiver
from tests.gateway.fixtures.tenants import HELLO, MODEL, STREAMED, Gateway, in_database, until
from workers.engines import environment
from workers.engines.driver import TINY_MODEL_ARGS
from workers.models import Replica
from workers.serving import endpoints

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.long,
    pytest.mark.real_engine,
    pytest.mark.timeout(400),
]


@pytest.fixture(autouse=True)
async def receiver(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OtlpReceiver]:
    """A receiver of the gateway's and the engine's spans."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    found = OtlpReceiver()
    await found.start()
    settings.TRACES_URL, settings.TRACES_RATIO = found.url, 1.0
    yield found
    await found.stop()


@pytest.fixture
def engine_timeout_seconds() -> float:
    """Wait for an engine on a busy machine."""
    return 60.0


@pytest.fixture
async def engine(gateway: Gateway, receiver: OtlpReceiver) -> AsyncIterator[Engine]:
    """Start vLLM with traces, as the model's only replica."""
    if environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    first, second = gateway.world.replicas
    offered = gateway.runtime.feed.snapshot.endpoints[MODEL]
    (key,) = (each.api_key for each in offered if each.replica_id == first.id)
    started = running("vllm", *TINY_MODEL_ARGS, served_name=MODEL, api_key=key, traces_url=receiver.url)
    found = await asyncio.to_thread(started.__enter__)

    def serve() -> None:
        tenants.place(gateway.world, [found.spec.port] * 2)
        Replica.objects.filter(id=second.id).update(state=Replica.State.STOPPED)
        endpoints.announce()

    await in_database(serve)
    await until(lambda: len(gateway.runtime.feed.snapshot.endpoints[MODEL]) == 1)
    yield found
    await asyncio.to_thread(started.__exit__, None, None, None)


async def test_an_engines_span_is_a_child_of_its_call(gateway: Gateway, engine: Engine, receiver: OtlpReceiver) -> None:
    tracer = gateway.runtime.components.tracer
    assert tracer is not None
    prompt = "xylophone"
    asked = {**STREAMED, "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
    got = await gateway.ask(asked)
    assert got.status == 200
    request_id = got.answer_headers["x-request-id"]

    def engines() -> list[str]:
        return [each.parent_id for each in receiver.of(request_id) if each.resource["service.name"] == "vllm"]

    await until(lambda: engines() and any(not each.parent_id for each in receiver.of(request_id)))
    (call,) = [each for each in receiver.of(request_id) if each.name == f"chat {MODEL}"]
    assert engines() == [call.span_id]
    (span,) = [each for each in receiver.of(request_id) if each.parent_id == call.span_id]
    assert request_id in span.attributes["gen_ai.request.id"]
    assert span.attributes["gen_ai.usage.completion_tokens"] == 4
    assert not any(prompt.encode() in body for body in receiver.bodies)
    # A request that the gateway does not trace is no trace of the engine's own, nor is its start.
    tracer._limit = 0
    untraced = await gateway.ask({**HELLO, "max_tokens": 4})
    tracer._limit = 1 << 32
    traced = await gateway.ask({**HELLO, "max_tokens": 5})
    await until(
        lambda: any(
            each.resource["service.name"] == "vllm" for each in receiver.of(traced.answer_headers["x-request-id"])
        )
    )
    assert receiver.of(untraced.answer_headers["x-request-id"]) == []
    ids = {each.answer_headers["x-request-id"].replace("-", "") for each in (got, traced)}
    assert {each.trace_id for each in receiver.received} == ids
