"""Sessions: what names them, where they run, and where they go when their replica is drained."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import after
from tests.gateway.fixtures.tenants import HELLO, MODEL, Gateway, in_database, until
from workers.models import Replica

pytestmark = [pytest.mark.django_db(transaction=True)]

SEEDS = itertools.count()


async def turn(gateway: Gateway, *, key: str | None = None, **headers: str) -> Exchange:
    """Send a request unlike any before; ``headers`` with underscores for dashes."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.ask({**HELLO, "temperature": 1, "seed": next(SEEDS)}, key=key, headers=sent)


def where(found: Exchange) -> tuple[str, str]:
    """Return why and on which replica a request ran."""
    return found.answer_headers["x-route"].partition(";")[0], found.answer_headers["x-replica"]


async def test_a_header_of_the_tenants_policy_names_a_session_of_that_tenant_alone(gateway: Gateway) -> None:
    stranger = gateway.world.globex.secret
    await gateway.set_policy(session_headers=("x-thread-id",))
    for thread in range(4):
        mine = [where(await turn(gateway, x_thread_id=str(thread))) for _ in range(2)]
        assert mine == [("session", mine[0][1])] * 2
        theirs = [where(await turn(gateway, key=stranger, x_thread_id=str(thread)))[0] for _ in range(2)]
        assert "session" not in theirs
    assert "session" not in [where(await turn(gateway, x_session_id="s"))[0] for _ in range(2)]


async def test_a_strict_session_waits_at_its_busy_home(gateway: Gateway) -> None:
    async def turns_at_once(session: str) -> tuple[Exchange, Exchange]:
        """Return the first turn of a session, a long prompt, and one that was sent while its engine computes."""
        for engine in gateway.engines:
            engine.bodies.clear()
        released = asyncio.Event()
        gateway.let_all_say(after(released))
        said = [{"role": "user", "content": session + " what keeps a room warm" * 40_000}]
        long = {**HELLO, "temperature": 1, "messages": said}
        first = asyncio.ensure_future(gateway.ask(long, headers={"x-session-id": session}))
        await until(gateway.bodies)
        second = asyncio.ensure_future(turn(gateway, x_session_id=session))
        await until(lambda: len(gateway.bodies()) == 2)
        released.set()
        return await first, await second

    first, second = await turns_at_once("a")
    assert (where(second)[0], where(second)[1] == where(first)[1]) == ("load", False)
    await gateway.set_policy(session_affinity="strict")
    first, second = await turns_at_once("b")
    assert where(second) == ("session", where(first)[1])


async def test_a_session_leaves_a_replica_that_is_drained_while_that_still_serves(gateway: Gateway) -> None:
    _, before = where(await turn(gateway, x_session_id="s"))
    served = [bool(engine.bodies) for engine in gateway.engines]
    drained = gateway.world.replicas[served.index(True)].id
    await in_database(lambda: Replica.objects.filter(id=drained).update(leaving=True))
    router = gateway.runtime.pipeline._components.dispatcher._router
    await until(lambda: router._leaving == {drained})
    assert len(gateway.runtime.feed.snapshot.endpoints[MODEL]) == 2
    moved = [where(await turn(gateway, x_session_id="s"))[1] for _ in range(3)]
    assert (before in moved, len(set(moved))) == (False, 1)
    await in_database(lambda: Replica.objects.filter(id=drained).update(leaving=False))
    await until(lambda: not router._leaving)
    assert where(await turn(gateway, x_session_id="s")) == ("session", moved[0])
