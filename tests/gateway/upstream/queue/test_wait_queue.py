"""Requests that find no replica wait for one: bounded, with comments if they stream, and metered as all others."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.errors import NotReady, no_replica_ready
from gateway.upstream.queue.bounds import QueuedRequest
from tenants.keys import keys
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import answer, hang_up, hello, saying, text_of
from tests.gateway.fixtures.tenants import DOORS, HELLO, MODEL, STREAMED, Gateway, in_database, until
from tests.tenants.customers import OPERATOR
from workers.models import Level, Pool, Replica, StartTime
from workers.serving import endpoints

pytestmark = pytest.mark.usefixtures("starts_are_read_often")

both_doors = pytest.mark.parametrize("gateway", DOORS, indirect=True)
either_way = pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
#: A measured start, and the estimate that a client gets from it.
START_SECONDS, RETRY_AFTER = 6.2, "7"


#: As long as HELLO, and never given another request's answer.
ALONE: dict[str, Any] = {**HELLO, "temperature": 1}


async def put_to_sleep(gateway: Gateway) -> None:
    """Let the model have no replica, and a deployment that may have one."""
    await in_database(tenants.stop_replicas)
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)


async def wake_up(gateway: Gateway) -> None:
    """Let both replicas be ready."""
    await in_database(lambda: tenants.place(gateway.world, [engine.port for engine in gateway.engines]))


async def hold(gateway: Gateway, *bodies: Any, **how: Any) -> list[asyncio.Task[Exchange]]:
    """Send requests, and return once they are held."""
    already = gateway.held()
    sent = [asyncio.ensure_future(gateway.ask(body, **how)) for body in bodies]
    await until(lambda: gateway.held() == already + len(bodies))
    return sent


def measure(gateway: Gateway) -> None:
    """Record a cold start of the model."""
    (replica, _), revision = gateway.world.replicas, gateway.world.revision
    pool = Pool.objects.create(name="p", kind="simulated")
    StartTime.objects.create(
        replica=replica, revision=revision, pool=pool, level=Level.COLD, seconds=START_SECONDS, process_seconds=1.0
    )


def told(exchange: Exchange) -> tuple[int, str]:
    """Return the status and the code of an error."""
    return exchange.status, exchange.error["code"]


@both_doors
@either_way
async def test_a_request_waits_for_the_first_replica_and_is_metered_once(gateway: Gateway, body: Any) -> None:
    await put_to_sleep(gateway)
    (waiting,) = await hold(gateway, body)
    assert gateway.starts() == []
    await wake_up(gateway)
    got = await waiting
    assert (got.status, got.answer_headers["x-cache"]) == (200, "miss")
    assert text_of(got.events) == "Hello" if body is STREAMED else got.json == answer()
    assert "x-route" in got.answer_headers
    assert (len(gateway.starts()), [end.state for end in gateway.ends()]) == (1, ["complete"])
    await gateway.idle()


@either_way
async def test_one_that_waits_too_long_is_told_how_long_a_start_takes(gateway: Gateway, body: Any) -> None:
    await in_database(lambda: measure(gateway))
    await put_to_sleep(gateway)
    await until(lambda: START_SECONDS in gateway.runtime.feed.snapshot.etas.values())
    await gateway.set_policy(queue_seconds=1)
    got = await gateway.ask(body)
    assert (*told(got), got.answer_headers["retry-after"]) == (503, "no_replica_ready", RETRY_AFTER)
    assert (gateway.starts(), gateway.held()) == ([], 0)


async def test_who_waited_for_an_identical_request_as_long_as_it_may_is_not_held_as_well(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    tried: list[None] = []

    async def attempt() -> None:
        tried.append(None)

    guest = QueuedRequest(
        caller=gateway.caller(),
        model=gateway.runtime.feed.snapshot.catalogue.models[MODEL],
        size_bytes=1,
        tokens=1,
        waited_seconds=gateway.caller().policy.queue_seconds,
    )
    with pytest.raises(NotReady):
        await gateway.runtime.components.replica_queue.wait(guest, no_replica_ready(MODEL), attempt)
    assert (tried, gateway.held()) == ([], 0)


async def test_time_spent_waiting_for_room_counts_against_the_wait_for_a_replica(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    components = gateway.runtime.components
    tried: list[float] = []
    guest = QueuedRequest(
        caller=gateway.caller(),
        model=gateway.runtime.feed.snapshot.catalogue.models[MODEL],
        size_bytes=1,
        tokens=1,
    )

    async def attempt() -> None:
        """Wait for room on a replica for as long as the tenant's requests may wait, in vain."""
        with components.dispatcher.turns.bounds.counted(guest):
            guest.waited_seconds += guest.caller.policy.queue_seconds
        tried.append(guest.left_seconds)
        raise no_replica_ready(MODEL)

    waiting = asyncio.ensure_future(components.replica_queue.wait(guest, no_replica_ready(MODEL), attempt))
    await until(gateway.held)
    components.replica_queue.wake()
    with pytest.raises(NotReady):
        await waiting
    assert (len(tried), gateway.held()) == (1, 0)
    assert tried[0] < 0


async def test_identical_requests_that_nothing_comes_for_are_all_told_so(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    await gateway.set_policy(queue_seconds=1)
    got = await asyncio.gather(*[gateway.ask(HELLO) for _ in range(20)])
    assert {told(each) for each in got} == {(503, "no_replica_ready")}
    assert gateway.bodies() == []


async def test_a_tenant_holds_so_many_requests_and_no_more(gateway: Gateway) -> None:
    await in_database(lambda: measure(gateway))
    await put_to_sleep(gateway)
    await until(lambda: START_SECONDS in gateway.runtime.feed.snapshot.etas.values())
    await gateway.set_policy(queue_requests=2)
    waiting = await hold(gateway, ALONE, STREAMED)
    refused = await gateway.ask(ALONE)
    assert (*told(refused), refused.answer_headers["retry-after"]) == (503, "too_many_held", RETRY_AFTER)
    assert "this tenant's waiting requests would exceed `queue_requests` (2) of its policy" in refused.error["message"]
    waiting += await hold(gateway, HELLO, key=gateway.world.globex.secret)
    await wake_up(gateway)
    assert [got.status for got in await asyncio.gather(*waiting)] == [200, 200, 200]


async def test_a_tenant_holds_so_many_bytes_and_no_more(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    await gateway.set_policy(queue_bytes=2 * len(orjson.dumps(HELLO)))
    waiting = await hold(gateway, ALONE, ALONE)
    refused = await gateway.ask(ALONE)
    assert told(refused) == (503, "too_many_held")
    assert "would exceed `queue_bytes`" in refused.error["message"]
    await wake_up(gateway)
    assert [got.status for got in await asyncio.gather(*waiting)] == [200, 200]


@both_doors
@either_way
async def test_a_client_that_leaves_frees_its_place_at_once(gateway: Gateway, body: Any) -> None:
    await put_to_sleep(gateway)
    exchange = gateway.exchange(body)
    sent = asyncio.ensure_future(exchange.run())
    await until(lambda: gateway.held() == 1)
    exchange.disconnect.set()
    await sent
    await until(lambda: gateway.held() == 0)
    await wake_up(gateway)
    await until(lambda: gateway.runtime.feed.snapshot.endpoints)
    assert (gateway.bodies(), gateway.starts()) == ([], [])


@both_doors
async def test_a_held_stream_is_told_that_it_waits_and_then_is_a_stream(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    gateway.send_comments_every(0.05)
    exchange = gateway.exchange(STREAMED)
    sent = asyncio.ensure_future(exchange.run())
    await until(lambda: len(exchange.sent) >= 3)
    await wake_up(gateway)
    await sent
    assert (exchange.status, exchange.answer_headers["x-cache"]) == (200, "miss")
    assert exchange.events[:2] == [b": waiting for a replica, which usually takes 30 s"] * 2
    assert (text_of(exchange.events), exchange.events[-1]) == ("Hello", b"data: [DONE]")
    assert [end.state for end in gateway.ends()] == ["complete"]
    await gateway.idle()


@both_doors
async def test_after_a_heartbeat_an_error_is_an_event(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    await gateway.set_policy(queue_seconds=1)
    gateway.send_comments_every(0.05)
    got = await gateway.ask(STREAMED)
    kind, data = got.events[-1].split(b"\n")
    assert (got.status, kind) == (200, b"event: error")
    assert orjson.loads(data.removeprefix(b"data: "))["error"]["code"] == "no_replica_ready"
    assert gateway.starts() == []
    await gateway.idle()


async def test_after_a_heartbeat_the_engines_refusal_is_an_event_and_is_metered(gateway: Gateway) -> None:
    gateway.let_all_say(saying({"error": {"message": "bad top_k"}}, status=400))
    await put_to_sleep(gateway)
    gateway.send_comments_every(0.05)
    exchange = gateway.exchange(STREAMED)
    sent = asyncio.ensure_future(exchange.run())
    await until(lambda: exchange.sent)
    await wake_up(gateway)
    await sent
    assert b"bad top_k" in exchange.events[-1]
    assert [(end.state, end.http_status) for end in gateway.ends()] == [("refused", 400)]
    assert gateway.loads() == [0, 0]


@both_doors
async def test_a_client_that_leaves_between_heartbeats_frees_its_place_at_once(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    gateway.send_comments_every(0.05)
    exchange = gateway.exchange(STREAMED)
    sent = asyncio.ensure_future(exchange.run())
    await until(lambda: len(exchange.sent) >= 2)
    exchange.disconnect.set()
    await sent
    await until(lambda: gateway.held() == 0)
    await wake_up(gateway)
    await until(lambda: gateway.runtime.feed.snapshot.endpoints)
    assert gateway.bodies() == []


async def test_a_client_that_leaves_just_as_its_reply_begins_leaves_nothing_counted(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    (sent,) = await hold(gateway, STREAMED)
    (waiting,) = [task for task in asyncio.all_tasks() if "_stream.<locals>.obtain" in repr(task.get_coro())]
    waiting.add_done_callback(lambda _: sent.cancel())
    await wake_up(gateway)
    await asyncio.wait({sent})
    assert [end.state for end in gateway.ends()] == ["client_gone"]
    assert gateway.loads() == [0, 0]


async def test_a_model_that_will_not_come_back_keeps_nobody_waiting(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    waiting = await hold(gateway, ALONE, STREAMED)
    await in_database(lambda: tenants.stop_replicas(maximum=0))
    assert [told(got) for got in await asyncio.gather(*waiting)] == [(503, "no_replica_ready")] * 2


async def test_a_key_revoked_while_its_request_waits_opens_nothing(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    second = await in_database(lambda: keys.issue(OPERATOR, gateway.world.acme.project, name="second"))
    (waiting,) = await hold(gateway, HELLO, key=second.secret)
    await in_database(lambda: keys.revoke(OPERATOR, second.key))
    assert told(await waiting) == (401, "key_revoked")
    assert gateway.starts() == []


@both_doors
@either_way
async def test_when_all_replicas_shut_down_a_request_waits_for_the_next(gateway: Gateway, body: Any) -> None:
    asked = count()

    async def say(request: web.Request, sent: dict[str, Any]) -> web.StreamResponse:
        return await (saying({}, status=503) if next(asked) < 2 else hello)(request, sent)

    gateway.let_all_say(say)
    got = await gateway.ask(body)
    assert got.status == 200
    assert [end.state for end in gateway.ends()] == ["complete"]
    assert len(gateway.starts()) == 3
    await gateway.idle()


async def test_a_request_that_breaks_two_engines_is_given_up(gateway: Gateway) -> None:
    gateway.let_all_say(hang_up)
    assert told(await gateway.ask()) == (502, "engine_failed")
    assert len(gateway.bodies()) == 2
    assert [end.state for end in gateway.ends()] == ["engine_error"]
    assert (gateway.held(), gateway.loads()) == (0, [0, 0])


async def test_an_engine_that_ends_after_it_was_chosen_loses_no_request(gateway: Gateway) -> None:
    first, second = gateway.engines
    await first.stop()
    await second.stop()
    (waiting,) = await hold(gateway, HELLO)
    await in_database(tenants.stop_replicas)
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
    await second.start()
    await wake_up(gateway)
    assert (await waiting).status == 200
    assert len(second.bodies) == 1


async def test_a_draining_replica_gets_no_new_request(gateway: Gateway) -> None:
    def drain() -> None:
        Replica.objects.filter(id=gateway.world.replicas[0].id).update(desired_state=Replica.Desired.STOPPED)
        endpoints.announce()

    await in_database(drain)
    await until(lambda: len(gateway.runtime.feed.snapshot.endpoints["demo"]) == 1)
    for n in range(1, 5):
        assert (await gateway.ask({**HELLO, "n": n})).status == 200
    assert [len(engine.bodies) for engine in gateway.engines] == [0, 4]
