"""A request leaves no reference cycles, because gateways run the garbage collector rarely."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.gateway.fixtures.scripted_app import CHUNKS, events, hello, streaming
from tests.gateway.fixtures.tenants import HELLO, STREAMED, Gateway, until

ROOMS = {"billing", "caching", "catalogue", "gateway", "routing", "tenants"}
Ask = Callable[[Gateway, int], Awaitable[None]]


@contextmanager
def kept() -> Iterator[Counter[str]]:
    """Count, by type, what of our own is garbage in the end that nobody's last reference freed."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        kinds = (type(each) for each in gc.garbage)
        found.update(kind.__qualname__ for kind in kinds if kind.__module__.partition(".")[0] in ROOMS)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def new(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a request that nobody asked before."""
    return {**body, "messages": [{"role": "user", "content": f"question {number}"}]}


async def hit(gateway: Gateway, number: int) -> None:
    await gateway.ask()


async def miss(gateway: Gateway, number: int) -> None:
    await gateway.ask(new(HELLO, number))


async def stream(gateway: Gateway, number: int) -> None:
    await gateway.ask(new(STREAMED, number))


async def together(gateway: Gateway, number: int) -> None:
    await asyncio.gather(*[gateway.ask(new(body, number)) for body in (STREAMED, STREAMED, HELLO)])


async def left(gateway: Gateway, number: int) -> None:
    """Leave in the middle of a stream."""
    gateway.let_all_say(streaming(events(CHUNKS[:2], done=False), then_wait=True))
    exchange = gateway.exchange(new(STREAMED, number))
    work = asyncio.ensure_future(exchange.run())
    await until(lambda: b"Hel" in exchange.body)
    exchange.disconnect.set()
    await work


@pytest.mark.parametrize("ask", [hit, miss, stream, together, left], ids=lambda ask: ask.__name__)
async def test_a_request_leaves_no_cycle_behind(gateway: Gateway, ask: Ask) -> None:
    gateway.let_all_say(hello)
    await ask(gateway, 0)
    with kept() as found:
        for number in range(1, 11):
            await ask(gateway, number)
        await until(lambda: not gateway.runtime.components.single_flight._flights)
    assert not found
