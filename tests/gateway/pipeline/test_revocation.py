"""A right that a key loses is lost at once, at every gateway, for running requests too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from django.utils import timezone

from tenants import policy_epoch, registry
from tenants.keys import keys
from tenants.models import Project, Tenant
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import CHUNKS, ScriptedEngine, events, silence, streaming
from tests.gateway.fixtures.tenants import HELLO, STREAMED, Gateway, in_database, until
from tests.gateway.upstream.queue.test_wait_queue import hold, put_to_sleep, wake_up
from tests.tenants.customers import OPERATOR, Customer

ELSEWHERE = ["192.0.2.0/24"]
#: The head and two tokens, and then nothing more.
UNFINISHED = streaming(events(CHUNKS[:3], done=False), then_wait=True)


@pytest.fixture
async def gateways(
    gateway: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine], tmp_path: Path
) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateway processes of one host."""
    async with tenants.raw_door(gateway.world, engines, tmp_path / "wal") as second:
        yield gateway, second


def archive(acme: Customer) -> None:
    """Close the project of a customer's key."""
    Project.objects.filter(id=acme.project.id).update(archived_at=timezone.now())
    policy_epoch.bump()


#: What may be taken from a key: how, and the error its user gets.
LOSSES: dict[str, tuple[Callable[[Customer], object], int, str]] = {
    "revoked": (lambda acme: keys.revoke(OPERATOR, acme.key), 401, "key_revoked"),
    "suspended": (lambda acme: registry.suspend(OPERATOR, acme.tenant), 401, "tenant_suspended"),
    "archived": (archive, 401, "project_archived"),
    "scope": (lambda acme: keys.change(OPERATOR, acme.key, scopes=["management:read"]), 403, "scope_missing"),
    "model": (lambda acme: keys.change(OPERATOR, acme.key, allowed_models=["other"]), 403, "model_not_allowed"),
    "networks": (lambda acme: keys.change(OPERATOR, acme.key, allowed_networks=ELSEWHERE), 403, "address_not_allowed"),
}


def last_code(exchange: Exchange) -> str:
    """Return the code of the error event that ended a stream."""
    last = exchange.events[-1]
    assert last.startswith(b"event: error\ndata: ")
    return str(orjson.loads(last.removeprefix(b"event: error\ndata: "))["error"]["code"])


async def begin(gateway: Gateway, count: int, key: str | None = None) -> list[tuple[Exchange, asyncio.Task[Any]]]:
    """Start streams and wait until each has sent two tokens."""
    begun = []
    for number in range(count):
        body = {**STREAMED, "messages": [{"role": "user", "content": f"{key} {number}"}]}
        exchange = gateway.exchange(body, key=key)
        begun.append((exchange, asyncio.create_task(exchange.run())))
    await until(lambda: all(exchange.body.count(b"data:") == 3 for exchange, _ in begun), seconds=60)
    return begun


async def test_two_hundred_streams_of_a_revoked_key_end_at_both_gateways_and_a_stranger_s_goes_on(
    gateways: tuple[Gateway, Gateway],
) -> None:
    first, second = gateways
    first.let_all_say(UNFINISHED)
    own = [*await begin(first, 100), *await begin(second, 100)]
    foreign = [*await begin(first, 1, first.world.globex.secret), *await begin(second, 1, first.world.globex.secret)]
    await in_database(lambda: keys.revoke(OPERATOR, first.world.acme.key))
    await asyncio.wait_for(asyncio.gather(*(task for _, task in own)), timeout=60)
    assert {last_code(exchange) for exchange, _ in own} == {"key_revoked"}
    assert {exchange.status for exchange, _ in own} == {200}
    ends = first.ends()
    assert {end.request_id for end in ends} == {start.request_id for start in first.starts()} - {
        start.request_id for start in first.starts() if start.tenant_id == first.world.globex.tenant.id
    }
    assert {(end.state, end.http_status, end.completion_tokens) for end in ends} == {("refused", 200, 2)}
    assert not any(task.done() for _, task in foreign)
    await until(lambda: sum(engine.abandoned for engine in first.engines) == 200)
    for exchange, task in foreign:
        exchange.disconnect.set()
        await task


@pytest.mark.parametrize("loss", LOSSES)
async def test_whatever_a_key_loses_ends_what_runs_and_refuses_what_comes(
    gateways: tuple[Gateway, Gateway], loss: str
) -> None:
    take, status, code = LOSSES[loss]
    acme = gateways[0].world.acme
    gateways[0].let_all_say(UNFINISHED)
    streams = [(await begin(gateway, 1))[0] for gateway in gateways]
    gateways[0].let_all_say(silence)
    asked = len(gateways[0].bodies())
    waiting = [
        asyncio.create_task(gateway.ask({**body, "seed": seed}))
        for seed, (gateway, body) in enumerate(product(gateways, (HELLO, STREAMED)))
    ]
    await until(lambda: len(gateways[0].bodies()) == asked + len(waiting))
    await in_database(lambda: take(acme))
    await asyncio.wait_for(asyncio.gather(*(task for _, task in streams)), timeout=60)
    assert [last_code(exchange) for exchange, _ in streams] == [code, code]
    ended = await asyncio.wait_for(asyncio.gather(*waiting), timeout=60)
    assert [(each.status, each.error["code"]) for each in ended] == [(status, code)] * 4
    refused = [await gateway.ask() for gateway in gateways]
    assert [(each.status, each.error["code"]) for each in refused] == [(status, code)] * 2
    assert {end.state for end in gateways[0].ends()} == {"refused"}
    for gateway in gateways:
        assert gateway.loads() == [0, 0]
        assert gateway.runtime.components.active_requests.keys() == set()


def set_overdue(acme: Customer, since: datetime | None) -> None:
    """Set or remove the mark of a tenant that has not paid."""
    Tenant.objects.filter(id=acme.tenant.id).update(payment_overdue_since=since)
    policy_epoch.bump(tenants=[acme.tenant.id])


@pytest.mark.parametrize("how", ["rotated", "expired", "unpaid"])
async def test_a_key_that_expires_or_does_not_pay_is_refused_and_its_stream_finishes(
    gateway: Gateway, how: str
) -> None:
    acme = gateway.world.acme
    go_on = asyncio.Event()

    async def in_two_parts(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, event in enumerate(events()):
            if number == 3:
                await go_on.wait()
            await response.write(event)
        return response

    gateway.let_all_say(in_two_parts)
    ((exchange, task),) = await begin(gateway, 1)
    if how == "rotated":
        new = await in_database(lambda: keys.rotate(OPERATOR, acme.key, timedelta(0)))
        assert (await gateway.ask(key=new.secret, method="GET", path="/v1/models")).status == 200
    elif how == "expired":
        await in_database(lambda: keys.change(OPERATOR, acme.key, expires_at=timezone.now()))
    else:
        await in_database(lambda: set_overdue(acme, timezone.now()))
    for _ in range(2):
        await gateway.runtime.feed.refresh()
    refused = await gateway.ask()
    error = (
        (402, "payment_overdue", "billing_error") if how == "unpaid" else (401, "key_expired", "invalid_request_error")
    )
    assert (refused.status, refused.error["code"], refused.error["type"]) == error
    stranger = await gateway.ask(key=gateway.world.globex.secret, method="GET", path="/v1/models")
    assert stranger.status == 200
    go_on.set()
    await task
    if how == "unpaid":
        await in_database(lambda: set_overdue(acme, None))
        await gateway.runtime.feed.refresh()
        assert (await gateway.ask(method="GET", path="/v1/models")).status == 200
    assert exchange.events[-1] == b"data: [DONE]"
    assert [(end.state, end.completion_tokens) for end in gateway.ends()] == [("complete", 3)]


async def test_a_client_that_leaves_as_its_key_is_revoked_is_let_go(gateway: Gateway) -> None:
    gateway.let_all_say(silence)
    exchange = gateway.exchange()
    task = asyncio.create_task(exchange.run())
    await until(gateway.starts)
    await in_database(lambda: keys.revoke(OPERATOR, gateway.world.acme.key))
    exchange.disconnect.set()
    await asyncio.wait_for(task, timeout=60)
    assert len(gateway.ends()) == 1
    assert gateway.loads() == [0, 0]


async def test_a_change_that_takes_nothing_from_a_stream_leaves_it_alone(gateway: Gateway) -> None:
    gateway.let_all_say(UNFINISHED)
    ((exchange, task),) = await begin(gateway, 1)
    acme = gateway.world.acme
    await in_database(
        lambda: keys.change(
            OPERATOR, acme.key, allowed_models=[tenants.MODEL], allowed_networks=["127.0.0.0/8"], scopes=["inference"]
        )
    )
    for _ in range(2):
        await gateway.runtime.feed.refresh()
    elsewhere = await gateway.ask(client=("192.0.2.7", 1))
    assert (elsewhere.status, elsewhere.error["code"]) == (403, "address_not_allowed")
    assert not task.done()
    exchange.disconnect.set()
    await task
    assert [end.state for end in gateway.ends()] == ["client_gone"]


async def test_a_held_stream_that_was_told_to_wait_hears_that_its_key_is_revoked(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    gateway.send_comments_every(0.05)
    exchange = gateway.exchange(STREAMED)
    task = asyncio.create_task(exchange.run())
    await until(lambda: exchange.body.startswith(b": "))
    await in_database(lambda: keys.revoke(OPERATOR, gateway.world.acme.key))
    await asyncio.wait_for(task, timeout=60)
    assert (exchange.status, last_code(exchange), gateway.held()) == (200, "key_revoked", 0)
    assert gateway.records() == []


async def test_a_request_that_is_held_when_its_key_expires_is_served(gateway: Gateway) -> None:
    await put_to_sleep(gateway)
    waiting = await hold(gateway, HELLO, {**STREAMED, "seed": 1})
    await in_database(lambda: keys.rotate(OPERATOR, gateway.world.acme.key, timedelta(0)))
    for _ in range(2):
        await gateway.runtime.feed.refresh()
    assert (await gateway.ask()).error["code"] == "key_expired"
    await wake_up(gateway)
    assert [each.status for each in await asyncio.gather(*waiting)] == [200, 200]
    assert {end.state for end in gateway.ends()} == {"complete"}
    assert gateway.runtime.components.active_requests.keys() == set()
