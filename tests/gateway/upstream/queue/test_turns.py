"""While every replica is full requests wait in the gateway, and tenants take turns."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.errors import Unavailable, no_replica_ready
from gateway.upstream.queue import turns, wait_queue
from routing import fair_queue
from tenants.keys import keys
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import USAGE, ScriptedEngine, answer, hang_up, hello
from tests.gateway.fixtures.tenants import DOORS, HELLO, MODEL, Gateway, in_database, until
from tests.tenants.customers import OPERATOR
from workers.models import Replica
from workers.serving import endpoints

pytestmark = [pytest.mark.django_db(transaction=True)]

both_doors = pytest.mark.parametrize("gateway", DOORS, indirect=True)
either_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


class Gate:
    """Lets engines answer one request at a time."""

    def __init__(self, gateway: Gateway) -> None:
        self._let = asyncio.Semaphore(0)
        self._gateway = gateway
        gateway.let_all_say(self.say)

    async def say(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Answer when it is let."""
        await self._let.acquire()
        return await hello(request, body)

    def open(self, answers: int = 1000) -> None:
        """Let this many requests be answered."""
        for _ in range(answers):
            self._let.release()


def saying(text: str, *, stream: bool = False) -> dict[str, Any]:
    """Return a request whose answer is never another one's."""
    return {**HELLO, "messages": [{"role": "user", "content": text}], "temperature": 1, "stream": stream}


def order(gateway: Gateway) -> list[str]:
    """Return what the engines were asked, in order."""
    return [body["messages"][0]["content"] for body in gateway.bodies()]


def told(exchange: Exchange) -> tuple[int, str]:
    """Return the status and the code of an error."""
    return exchange.status, exchange.error["code"]


async def saying_nothing(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Report that the engine shuts down."""
    return web.json_response({}, status=503)


async def fill(gateway: Gateway, *, replicas: int = 1, most: int = 1) -> Gate:
    """Give the model ``replicas`` that run at most ``most`` requests each at once."""

    def write() -> None:
        Replica.objects.update(max_requests=most)
        for replica in gateway.world.replicas[replicas:]:
            Replica.objects.filter(id=replica.id).update(state=Replica.State.STOPPED)
        endpoints.announce()

    await in_database(write)
    await until(
        lambda: [each.max_requests for each in gateway.runtime.feed.snapshot.endpoints[MODEL]] == [most] * replicas
    )
    return Gate(gateway)


def present(gateway: Gateway, least: int = 0) -> int:
    """Return how many requests have come to an engine or wait, or 0 if they are fewer than ``least``."""
    count = gateway.held() + len(gateway.bodies())
    return count if count >= least else 0


async def send(
    gateway: Gateway, *texts: str, key: str | None = None, stream: bool = False
) -> list[asyncio.Task[Exchange]]:
    """Send requests one after the other, and return once each one runs or waits."""
    sent = []
    for text in texts:
        more = present(gateway) + 1
        sent.append(asyncio.ensure_future(gateway.ask(saying(text, stream=stream), key=key)))
        await until(partial(present, gateway, more))
    return sent


@both_doors
@either_way
async def test_a_quiet_tenant_does_not_wait_for_anothers_flood(gateway: Gateway, stream: bool) -> None:
    gate = await fill(gateway)
    sent = await send(gateway, "a0", "a1", "a2", "a3", "a4", stream=stream)
    sent += await send(gateway, "g0", "g1", key=gateway.world.globex.secret, stream=stream)
    assert (order(gateway), gateway.held()) == (["a0"], 6)
    gate.open()
    assert {got.status for got in await asyncio.gather(*sent)} == {200}
    assert order(gateway) == ["a0", "a1", "g0", "a2", "g1", "a3", "a4"]
    await gateway.idle()


async def test_a_large_answer_counts_for_more_than_a_small_one(gateway: Gateway) -> None:
    gate = await fill(gateway)
    sent = await send(gateway, "a0", "a1", "a2")
    sent += await send(gateway, "g0", "g1", "g2", key=gateway.world.globex.secret)

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens = 30 if body["messages"][0]["content"] == "a1" else 3
        return web.json_response(answer(usage={**USAGE, "completion_tokens": tokens}))

    gateway.let_all_say(say)
    gate.open()
    await asyncio.gather(*sent)
    assert order(gateway) == ["a0", "a1", "g0", "g1", "g2", "a2"]


async def test_a_higher_class_goes_first_and_shares_follow_weights(gateway: Gateway) -> None:
    await gateway.set_policy(priority="high")
    gate = await fill(gateway)
    globex = gateway.world.globex
    sent = await send(gateway, "g0", "g1", "g2", key=globex.secret)
    sent += await send(gateway, "a0", "a1")
    gate.open()
    await asyncio.gather(*sent)
    assert order(gateway) == ["g0", "a0", "a1", "g1", "g2"]
    await gateway.set_policy(priority="standard", weight=2)
    gate = await fill(gateway)
    sent = await send(gateway, "g3", "g4", "g5", "g6", key=globex.secret)
    sent += await send(gateway, "a2", "a3", "a4", "a5")
    gate.open()
    await asyncio.gather(*sent)
    assert order(gateway)[5:] == ["g3", "a2", "a3", "g4", "a4", "a5", "g5", "g6"]


async def test_the_time_in_the_queue_is_told(gateway: Gateway) -> None:
    gate = await fill(gateway)
    first, second = await send(gateway, "a0", "a1")
    gate.open()
    assert (await first).answer_headers["x-queue-ms"] == "0.00"
    waited = float((await second).answer_headers["x-queue-ms"])
    assert waited > 0
    await until(lambda: len(gateway.ends()) == 2)
    assert [round(end.queue_ms, 2) for end in gateway.ends()] == [0.0, pytest.approx(waited, abs=0.01)]


async def test_the_wait_for_room_is_kept_when_the_replica_then_fails(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_queue, "RETRY_SECONDS", 0.01)
    gate = await fill(gateway)
    first, second = await send(gateway, "a0", "a1")
    (waiting,) = gateway.runtime.components.dispatcher.turns._queues[MODEL]._classes[1].values()
    waiting[0].item.waiting.queued.waited_seconds += 5  # as if it had waited so long for room
    asked = count()

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await (saying_nothing if next(asked) == 0 else hello)(request, body)

    gateway.let_all_say(say)
    gate.open()
    assert ((await first).status, (await second).status) == (200, 200)
    assert next(asked) == 2
    await until(lambda: len(gateway.ends()) == 2)
    assert 5000 < gateway.ends()[1].queue_ms < 60_000


@either_way
async def test_one_that_waits_too_long_is_told_when_to_come_back(gateway: Gateway, stream: bool) -> None:
    await gateway.set_policy(queue_seconds=1)
    gate = await fill(gateway)
    running, waiting = await send(gateway, "a0", "a1", stream=stream)
    got = await waiting
    assert (*told(got), got.answer_headers["retry-after"]) == (503, "replicas_busy", "1")
    assert [end.queue_ms >= 999 for end in (*gateway.refusals(), *gateway.ends())] == [True]
    gate.open()
    assert (await running).status == 200
    assert [end.state for end in gateway.ends()] == ["complete"]
    await gateway.idle()


async def test_a_tenant_holds_so_many_requests_and_no_more(gateway: Gateway) -> None:
    await gateway.set_policy(queue_requests=2)
    gate = await fill(gateway)
    sent = await send(gateway, "a0", "a1", "a2")
    refused = await gateway.ask(saying("a3"))
    assert (*told(refused), refused.answer_headers["retry-after"]) == (503, "too_many_held", "1")
    assert "this tenant's waiting requests would exceed `queue_requests` (2) of its policy" in refused.error["message"]
    sent += await send(gateway, "g0", key=gateway.world.globex.secret)
    gate.open()
    assert {got.status for got in await asyncio.gather(*sent)} == {200}


async def test_no_tenant_takes_every_place_of_its_class(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.queue.turns.MAX_WAITING", 4)
    gate = await fill(gateway)
    sent = await send(gateway, "a0", "a1", "a2")
    assert told(await gateway.ask(saying("a3"))) == (503, "too_many_held")
    sent += await send(gateway, "g0", key=gateway.world.globex.secret)
    gate.open()
    assert {got.status for got in await asyncio.gather(*sent)} == {200}


async def test_retry_after_is_the_models_own_last_wait_and_no_longer_than_ones_own(gateway: Gateway) -> None:
    await gateway.set_policy(queue_requests=1, queue_seconds=7)
    gate = await fill(gateway)
    queues = gateway.runtime.components.dispatcher.turns._queues

    async def refused() -> str:
        got = await gateway.ask(saying("refused"))
        assert told(got) == (503, "too_many_held")
        return got.answer_headers["retry-after"]

    sent = await send(gateway, "a0", "a1")
    assert await refused() == "1"
    queues[MODEL].last_wait_seconds = 5.0
    queues["another"] = type(queues[MODEL])("another", gateway.runtime.components.dispatcher._router.counters)
    queues["another"].last_wait_seconds = 3.0
    assert await refused() == "5"
    queues[MODEL].last_wait_seconds = 3600.0
    assert await refused() == "7"
    gate.open(2)
    await asyncio.gather(*sent)
    queues[MODEL].last_wait_seconds = 5.0  # while nothing waits it ages
    sent = await send(gateway, "a2", "a3")
    assert await refused() == "1"
    gate.open()
    assert {got.status for got in await asyncio.gather(*sent)} == {200}


async def test_one_bound_holds_for_both_queues_and_once_for_each_request(gateway: Gateway) -> None:
    await gateway.set_policy(queue_requests=1)
    gate = await fill(gateway)
    sent = await send(gateway, "a0", "a1")
    turns, replica_queue = gateway.runtime.components.dispatcher.turns, gateway.runtime.components.replica_queue
    (waiting,) = turns._queues[MODEL]._classes[1].values()
    waits = waiting[0].item.waiting
    guest = dataclasses.replace(waits.queued, admitted=False)

    async def attempt() -> None:
        """Send nothing."""

    with pytest.raises(Unavailable) as refused:
        await replica_queue.wait(guest, no_replica_ready(MODEL), attempt)
    assert refused.value.code == "too_many_held"
    with turns.bounds.counted(guest):  # it waited for a replica, which is full when it comes
        pass
    admitted = asyncio.ensure_future(turns.wait(msgspec.structs.replace(waits, queued=guest)))
    await until(lambda: admitted.done() or gateway.held() == 2)
    gate.open()
    turns.give_back(await admitted)
    assert {got.status for got in await asyncio.gather(*sent)} == {200}
    await gateway.idle()


async def test_a_stream_that_waits_for_room_is_told_so_until_an_engine_has_it(gateway: Gateway) -> None:
    gateway.send_comments_every(0.05)
    gate = await fill(gateway)
    (running,) = await send(gateway, "a0")
    exchange = gateway.exchange(saying("a1", stream=True))
    sent = asyncio.ensure_future(exchange.run())
    await until(lambda: len(exchange.events) >= 2)
    assert set(exchange.events) == {b": waiting for room on a replica"}
    gate.open(1)
    await until(lambda: b": waiting for the engine" in exchange.body)
    gate.open()
    await sent
    assert ((await running).status, exchange.events[-1]) == (200, b"data: [DONE]")
    await gateway.idle()


@both_doors
@either_way
async def test_a_client_that_leaves_frees_its_place_at_once(gateway: Gateway, stream: bool) -> None:
    gate = await fill(gateway)
    (running,) = await send(gateway, "a0", stream=stream)
    exchange = gateway.exchange(saying("a1", stream=stream))
    leaves = asyncio.ensure_future(exchange.run())
    await until(lambda: gateway.held() == 1)
    exchange.disconnect.set()
    await leaves
    await until(lambda: gateway.held() == 0)
    gate.open()
    assert (await running).status == 200
    assert order(gateway) == ["a0"]
    await gateway.idle()


async def test_a_client_that_leaves_as_its_turn_comes_leaves_nothing_counted(gateway: Gateway) -> None:
    gate = await fill(gateway)
    first, second = await send(gateway, "a0", "a1")
    (waiting,) = gateway.runtime.components.dispatcher.turns._queues[MODEL]._classes[1].values()
    waiting[0].item.turn.add_done_callback(lambda _: second.cancel())
    gate.open()
    assert (await first).status == 200
    await asyncio.wait({second})
    assert gateway.loads() == [0, 0]
    await gateway.idle()


async def test_a_request_cancelled_just_before_its_turn_gets_none(gateway: Gateway) -> None:
    gate = await fill(gateway)
    first, second = await send(gateway, "a0", "a1")
    turns = gateway.runtime.components.dispatcher.turns
    (waiting,) = turns._queues[MODEL]._classes[1].values()
    waiter = waiting[0].item
    with_room = [dataclasses.replace(each, max_requests=9) for each in waiter.waiting.ready()]
    before = gateway.loads()
    waiter.turn.cancel()  # what asyncio does first when a client leaves or the time is over
    waiter.waiting = msgspec.structs.replace(waiter.waiting, ready=lambda: with_room)
    turns._look()
    assert gateway.loads() == before
    second.cancel()
    await asyncio.wait({second})
    gate.open()
    assert (await first).status == 200
    await gateway.idle()


async def test_a_key_revoked_while_its_request_waits_opens_nothing(gateway: Gateway) -> None:
    gate = await fill(gateway)
    issued = await in_database(lambda: keys.issue(OPERATOR, gateway.world.acme.project, name="second"))
    (running,) = await send(gateway, "a0")
    (waiting,) = await send(gateway, "a1", key=issued.secret)
    await in_database(lambda: keys.revoke(OPERATOR, issued.key))
    assert told(await waiting) == (401, "key_revoked")
    gate.open()
    assert (await running).status == 200
    assert order(gateway) == ["a0"]


async def test_a_replica_that_comes_serves_those_that_wait(gateway: Gateway) -> None:
    gate = await fill(gateway)
    sent = await send(gateway, "a0", "a1")
    second = gateway.world.replicas[1]

    def start() -> None:
        Replica.objects.filter(id=second.id).update(state=Replica.State.READY)
        endpoints.announce()

    await in_database(start)
    await until(lambda: len(gateway.bodies()) == 2)
    assert gateway.held() == 0
    gate.open()
    assert {got.status for got in await asyncio.gather(*sent)} == {200}


async def test_when_the_last_replica_goes_those_that_wait_are_told_so(gateway: Gateway) -> None:
    gate = await fill(gateway)
    running, waiting = await send(gateway, "a0", "a1")
    await in_database(lambda: tenants.stop_replicas(maximum=0))
    assert told(await waiting) == (503, "no_replica_ready")
    gate.open()
    assert (await running).status == 200


async def test_a_request_whose_replica_fails_goes_to_another_though_it_is_full(gateway: Gateway) -> None:
    gate = await fill(gateway, replicas=2)
    sent = await send(gateway, "a0", "a1", "a2")
    gateway.engines[0].say = hang_up
    gate.open()
    assert {got.status for got in await asyncio.gather(*sent)} == {200}
    await gateway.idle()


@asynccontextmanager
async def beside(
    gateway: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine], tmp_path: Path
) -> AsyncIterator[tuple[Gateway, Gate]]:
    """Run a second process of the host, with one replica for both that runs one request at a time."""
    async with tenants.raw_door(gateway.world, engines, tmp_path / "wal") as second:
        for process in (gateway, second):
            router = process.runtime.components.dispatcher._router
            while not router.state.others:
                assert (await process.ask(saying("hello"))).status == 200
                router._looked_at = 0.0  # it looks once in a second
        gate = await fill(gateway)
        await until(lambda: [each.max_requests for each in second.runtime.feed.snapshot.endpoints[MODEL]] == [1])
        yield second, gate
        await second.idle()


async def test_what_one_process_sends_fills_a_replica_for_the_other(
    gateway: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine], tmp_path: Path
) -> None:
    async with beside(gateway, engines, tmp_path) as (second, gate):
        (running,) = await send(gateway, "a0")
        waiting = asyncio.ensure_future(second.ask(saying("a1")))
        await until(lambda: second.held() == 1)
        gate.open()
        assert ((await running).status, (await waiting).status) == (200, 200)


async def test_a_request_that_comes_before_those_of_another_process_is_served_without_a_timer(
    gateway: Gateway,
    engines: tuple[ScriptedEngine, ScriptedEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_queue, "POSTED_SECONDS", 3600.0)
    monkeypatch.setattr(turns, "LOOK_SECONDS", 3600.0)
    async with beside(gateway, engines, tmp_path) as (second, gate):
        await gateway.set_policy(queue_seconds=2)
        counters = second.runtime.components.dispatcher._router.counters
        elsewhere: fair_queue.FairQueue[str] = fair_queue.FairQueue(MODEL, counters)
        low = elsewhere.add("low", gateway.world.globex.tenant.id, fair_queue.Priority.LOW)
        elsewhere.post(low)
        gate.open()
        assert (await gateway.ask(saying("a0"))).status == 200
        elsewhere.remove(low)


async def test_a_request_that_may_not_wait_makes_no_queue(gateway: Gateway) -> None:
    await gateway.set_policy(queue_requests=0)
    assert (await gateway.ask(saying("a0"))).status == 200
    assert gateway.runtime.components.dispatcher.turns._queues == {}


async def test_models_for_which_nothing_waits_are_not_looked_at(gateway: Gateway) -> None:
    gate = await fill(gateway)
    waiting_for_turn = gateway.runtime.components.dispatcher.turns
    waiting_for_turn._queue("another")
    sent = await send(gateway, "a0", "a1")
    in_use = set(waiting_for_turn._in_use)
    gate.open()
    assert {got.status for got in await asyncio.gather(*sent)} == {200}
    assert in_use == {MODEL}
    await until(lambda: not waiting_for_turn._in_use and waiting_for_turn._timer is None)


async def test_a_tenant_that_waits_in_two_processes_gets_no_more_than_one_that_waits_in_one(
    gateway: Gateway,
    engines: tuple[ScriptedEngine, ScriptedEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_queue, "PATIENCE_SECONDS", 60.0)  # machines that run tests may be slow
    monkeypatch.setattr(fair_queue, "POSTED_SECONDS", 60.0)
    async with beside(gateway, engines, tmp_path) as (second, gate):
        before = len(order(gateway))
        sent = await send(gateway, *(f"a{number}" for number in range(5)))
        for number in range(4):
            sent.append(asyncio.ensure_future(second.ask(saying(f"b{number}"))))
            await until(lambda: second.held() == number + 1)  # noqa: B023
        for number in range(4):
            key = gateway.world.globex.secret
            sent.append(asyncio.ensure_future(second.ask(saying(f"g{number}"), key=key)))
            await until(lambda: second.held() == number + 5)  # noqa: B023
        gate.open()
        assert {got.status for got in await asyncio.gather(*sent)} == {200}
        got = [text[0] == "g" for text in order(gateway)[before + 1 :]]
        assert sum(got[:8]) == 4
