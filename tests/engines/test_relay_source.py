"""The relay's block set equals the engine's prefix cache, whenever it starts to follow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import zmq.asyncio

from tests.engines.reference_hashes import chain
from tests.engines.replica import BLOCK_TOKENS, BLOCKS, Client, Replica
from workers.kv_relay.addresses import EventAddress
from workers.kv_relay.block_set import Change
from workers.kv_relay.event_source import EventSource


@contextlib.asynccontextmanager
async def following(
    replica: Replica, told: Callable[[Change], None] = lambda change: None
) -> AsyncIterator[EventSource]:
    """Follow the engine from now on."""
    spec = replica.spec
    assert spec.kv_events_endpoint is not None
    assert spec.kv_replay_endpoint is not None
    with zmq.asyncio.Context() as context:
        address = EventAddress(events=spec.kv_events_endpoint, replay=spec.kv_replay_endpoint)
        source = EventSource(context, address, told)
        task = asyncio.create_task(source.run())
        try:
            yield source
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def ask(client: Client, prompt: list[int], salt: str) -> list[bytes]:
    """Send the engine a prompt and return the hashes of its full blocks."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
    assert (await client.post("/v1/completions", body)).status == 200
    return list(chain(prompt, BLOCK_TOKENS, salt=salt))


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(30):
        while True:
            if holds():
                return
            await asyncio.sleep(0.05)


async def holds(source: EventSource, blocks: list[bytes]) -> None:
    """Wait until the source has these blocks."""
    await until(lambda: set(blocks) <= set(source.blocks.hashes()))


async def test_what_is_cached_is_known_by_the_engines_own_salted_hash(
    replica: Replica, client: Client, prompt: list[int], salt: str
) -> None:
    async with following(replica) as source:
        mine = await ask(client, prompt, salt)
        assert len(mine) == 3
        await holds(source, mine)
        theirs = await ask(client, prompt, f"{salt}-other")
        await holds(source, theirs)
        assert not set(mine) & set(theirs)


async def test_a_source_that_comes_late_knows_what_was_cached_before(
    replica: Replica, client: Client, prompt: list[int], salt: str
) -> None:
    before = await ask(client, prompt, salt)
    async with following(replica) as source:
        await holds(source, before)


async def test_what_is_evicted_is_forgotten_and_changes_tell_the_same(
    replica: Replica, client: Client, prompt: list[int], salt: str
) -> None:
    told: set[bytes] = set()

    def note(change: Change) -> None:
        if change.cleared:
            told.clear()
        told.difference_update(change.removed)
        told.update(change.stored)

    async with following(replica, note) as source:
        first = await ask(client, prompt, salt)
        await holds(source, first)
        for number in range(BLOCKS // 60 + 2):
            start = 300 + number
            await ask(client, [start + position % 900 for position in range(64 * BLOCK_TOKENS)], f"{salt}-{number}")
        await until(lambda: not set(first) & set(source.blocks.hashes()))
        assert len(source.blocks) <= BLOCKS
        assert told == set(source.blocks.hashes())
