"""A tenant floods a real vLLM engine, and another's requests overtake those that wait in the gateway."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest
from redis.asyncio import Redis

from gateway.upstream.routing.decision_log import SEND_SECONDS
from routing import decision_record
from routing.explanation import Decision
from tests.engines.replica import Replica as Engine
from tests.engines.replica import running
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.tenants import MODEL, Gateway, in_database, until
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

#: Requests that the engine runs at once.
SLOTS = 2
FLOOD, OTHERS = 30, 5


@pytest.fixture
async def engine(gateway: Gateway) -> AsyncIterator[Engine]:
    """Start vLLM with few places, as the first replica of the model."""
    if environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    replica_id = gateway.world.replicas[0].id
    offered = gateway.runtime.feed.snapshot.endpoints[MODEL]
    (key,) = (each.api_key for each in offered if each.replica_id == replica_id)
    slots = ("--max-num-seqs", str(SLOTS))
    started = running("vllm", *TINY_MODEL_ARGS, *slots, served_name=MODEL, api_key=key)
    yield await asyncio.to_thread(started.__enter__)
    await asyncio.to_thread(started.__exit__, None, None, None)


@pytest.fixture
def engine_timeout_seconds() -> float:
    """Wait for an engine on a busy machine."""
    return 60.0


def asking(text: str, max_tokens: int = 16) -> dict[str, Any]:
    """Return a streamed request of a size that does not depend on the model's taste."""
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}


def most_requests(engine: Engine) -> int:
    """Return how many requests the engine says that it runs at once."""
    asked = urllib.request.Request(
        f"{engine.spec.base_url}/metrics", headers={"authorization": f"Bearer {engine.spec.api_key}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    (found,) = (line for line in lines if line.startswith("hearth_engine_max_requests"))
    return int(float(found.rpartition(" ")[2]))


async def serve(gateway: Gateway, engine: Engine) -> None:
    """Let the engine be the model's only replica."""

    def write() -> None:
        tenants.place(gateway.world, [engine.spec.port] * 2)
        first, second = gateway.world.replicas
        Replica.objects.filter(id=first.id).update(max_requests=most_requests(engine))
        Replica.objects.filter(id=second.id).update(state=Replica.State.STOPPED)
        endpoints.announce()

    await in_database(write)
    await until(lambda: [each.max_requests for each in gateway.runtime.feed.snapshot.endpoints[MODEL]] == [SLOTS])


async def tenants_served(gateway: Gateway, requests: int) -> list[UUID]:
    """Return the tenants of the requests in the order in which these went to the engine."""
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        items: list[Any] = []
        while len(items) < requests:
            await asyncio.sleep(SEND_SECONDS / 5)
            items = await redis.lrange(decision_record.KEY, 0, -1)
    return [msgspec.msgpack.decode(each, type=Decision).tenant_id for each in reversed(items)]


async def test_a_flood_of_one_tenant_is_overtaken_by_another(gateway: Gateway, engine: Engine) -> None:
    await serve(gateway, engine)
    acme, globex = gateway.world.acme, gateway.world.globex
    runs = [gateway.exchange(asking(f"long {number}", 6000)) for number in range(SLOTS)]
    sent = [asyncio.ensure_future(each.run()) for each in runs]
    await until(lambda: all(each.body.count(b"data:") > 1 for each in runs))
    for number in range(FLOOD):
        sent.append(asyncio.ensure_future(gateway.ask(asking(f"flood {number}"))))
    await until(lambda: gateway.held() == FLOOD)
    for number in range(OTHERS):
        sent.append(asyncio.ensure_future(gateway.ask(asking(f"other {number}"), key=globex.secret)))
    await until(lambda: gateway.held() == FLOOD + OTHERS)
    for each in runs:
        each.disconnect.set()
    got = await asyncio.gather(*sent)
    assert {each.status for each in got} == {200}
    assert all(each.events[-1] == b"data: [DONE]" for each in got[SLOTS:])
    served = (await tenants_served(gateway, SLOTS + FLOOD + OTHERS))[SLOTS:]
    assert (len(served), served.count(globex.tenant.id)) == (FLOOD + OTHERS, OTHERS)
    last = len(served) - 1 - served[::-1].index(globex.tenant.id)
    # Equal requests take turns; what runs at the same moment is charged in full only when it ends.
    assert served[: last + 1].count(acme.tenant.id) <= OTHERS + SLOTS
