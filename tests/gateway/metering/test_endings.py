"""However a request ends, what was held for it is given back once: the counter is the limit less what is charged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
from django.db.models import Sum

from billing.models import UsageRecord
from billing.pricing.prices import DEMO_RATES
from billing.pricing.rating import rate
from tenants.keys import keys
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.budget import Books, budgeted
from tests.gateway.fixtures.scripted_app import CHUNKS, Say, after, events, hang_up, hello, saying, silence, streaming
from tests.gateway.fixtures.tenants import HELLO, STREAMED, Gateway, in_database, until
from tests.gateway.metering.test_meter import full_disk
from tests.tenants.customers import OPERATOR

LIMIT_PICO = 10**13
Ending = Callable[[Gateway], Awaitable[None]]
Running = tuple[Exchange, asyncio.Future[Exchange]]
#: The beginning of a stream that says "Hel", and then nothing or the end of its connection.
BEGUN = events(CHUNKS[:2], done=False)
EITHER = (HELLO, STREAMED)


_seeds = count()


def fresh(body: dict[str, Any] = HELLO) -> dict[str, Any]:
    """Return a request unlike any before: no stored answer fits, and no engine has failed on it."""
    return {**body, "temperature": 1, "max_tokens": 20, "seed": next(_seeds)}


async def complete(gateway: Gateway) -> None:
    """Be answered by an engine, and from memory, in both shapes."""
    for body in EITHER:
        assert (await gateway.ask({**body, "max_tokens": 20})).status == 200
        assert (await gateway.ask(fresh(body))).status == 200
    assert {end.cache_result for end in gateway.ends()} >= {"hit", "miss"}


async def refused(gateway: Gateway) -> None:
    """Be refused: by the engine, and by the gateway before anything is held."""
    gateway.let_all_say(saying({"error": {"message": "no"}}, status=400))
    for body in EITHER:
        assert (await gateway.ask(fresh(body))).status == 400
    assert (await gateway.ask({**fresh(), "model": "nobody"})).status == 404


async def failed(gateway: Gateway) -> None:
    """Be failed by every engine: with a status, a closed connection, an answer that cannot be read."""
    for say in (saying({}, status=500), hang_up, saying(b"{")):
        gateway.let_all_say(say)
        for body in EITHER:
            assert b'"error"' in (await gateway.ask(fresh(body))).body


async def cut(gateway: Gateway) -> None:
    """Have a stream that breaks off before and after its first token."""
    for told in (BEGUN[:1], BEGUN):
        gateway.let_all_say(streaming(told, cut=True))
        assert b"engine_failed_mid_stream" in (await gateway.ask(fresh(STREAMED))).body


async def running(gateway: Gateway, say: Say, body: dict[str, Any], sign: bytes = b"") -> Running:
    """Send a request, and return it and its task once an engine has it and its client has seen the sign."""
    gateway.let_all_say(say)
    asked = len(gateway.bodies())
    exchange = gateway.exchange(fresh(body))
    work = asyncio.ensure_future(exchange.run())
    await until(lambda: len(gateway.bodies()) > asked and sign in exchange.body)
    return exchange, work


async def abandoned(gateway: Gateway) -> None:
    """Leave an engine that is silent, one that has begun, and a gateway that stops."""
    for say, body, sign in (
        (silence, HELLO, b""),
        (silence, STREAMED, b""),
        (streaming(BEGUN, then_wait=True), STREAMED, b"Hel"),
    ):
        exchange, work = await running(gateway, say, body, sign)
        exchange.disconnect.set()
        await asyncio.wait({work})
        _, work = await running(gateway, say, body, sign)
        work.cancel()
        await asyncio.wait({work})


async def unread(gateway: Gateway) -> None:
    """Read nothing of a stream but its head, or its head and its first event."""
    gateway.let_all_say(streaming(BEGUN * 50, pause_seconds=0.001, then_wait=True))
    for takes in (1, 2):
        await gateway.exchange(fresh(STREAMED), takes=takes).run()


async def unwritten(gateway: Gateway) -> None:
    """Be served while the usage log takes no START, then while it takes no END."""
    gateway.let_all_say(hello)
    with full_disk(gateway):
        for body in EITHER:
            assert (await gateway.ask(fresh(body))).status == 503
    for body in EITHER:
        released = asyncio.Event()
        exchange, work = await running(gateway, after(released), body)
        with full_disk(gateway):
            released.set()
            await work
        assert b"usage_log_unavailable" in exchange.body


async def revoked(gateway: Gateway) -> None:
    """Lose the key in the middle of a stream."""
    issued = await in_database(lambda: keys.issue(OPERATOR, gateway.world.acme.project, name="short-lived"))
    gateway.let_all_say(streaming(BEGUN, then_wait=True))
    await until(lambda: issued.key.public_id in gateway.runtime.feed.snapshot.callers.keys)
    exchange = gateway.exchange(fresh(STREAMED), key=issued.secret)
    work = asyncio.ensure_future(exchange.run())
    await until(lambda: b"Hel" in exchange.body)
    await in_database(lambda: keys.revoke(OPERATOR, issued.key))
    await work
    assert b"key_revoked" in exchange.events[-1]


async def never_dispatched(gateway: Gateway) -> None:
    """Find no replica: wait until it takes too long, or leave while waiting."""
    await in_database(tenants.stop_replicas)
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
    await gateway.set_policy(queue_seconds=1)
    for body in EITHER:
        assert (await gateway.ask(fresh(body))).error["code"] == "no_replica_ready"
    await gateway.set_policy(queue_seconds=30)
    gateway.send_comments_every(0.1)
    for body in EITHER:
        waiting = gateway.exchange(fresh(body))
        work = asyncio.ensure_future(waiting.run())
        await until(lambda: gateway.held() == 1)
        waiting.disconnect.set()
        await asyncio.wait({work})


ENDINGS: tuple[Ending, ...] = (complete, refused, failed, cut, abandoned, unread, unwritten, revoked, never_dispatched)


def charged_pico(gateway: Gateway) -> int:
    """Return what the ENDs in the log cost."""
    return sum(rate(end, DEMO_RATES).amount_pico for end in gateway.ends())


def settled(gateway: Gateway, books: Books) -> bool:
    """Return whether nothing is held, and what is left is what was not charged."""
    held = [value for value in books.holds().values() if not value.startswith("=")]
    return not held and books.left() == LIMIT_PICO - charged_pico(gateway)


@pytest.mark.usefixtures("emptied")
async def test_every_ending_settles_what_was_held_exactly_once(gateway: Gateway) -> None:
    books = await budgeted(gateway, LIMIT_PICO)
    await books.keep()
    for ending in ENDINGS:
        gateway.let_all_say(hello)
        await ending(gateway)
        await until(lambda: settled(gateway, books))
        assert gateway.loads() == [0, 0], ending
    begun = {start.request_id for start in gateway.starts()}
    ended = [end.request_id for end in gateway.ends()]
    assert sorted(ended) == sorted(begun)
    await books.keep()
    stored = await in_database(lambda: UsageRecord.objects.aggregate(total=Sum("amount_pico"))["total"])
    assert stored == charged_pico(gateway) > 0
    assert books.holds() == {}
    assert books.left() == LIMIT_PICO - stored
