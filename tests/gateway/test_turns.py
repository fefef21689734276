"""A conversation that many requests share: each gets its own answer, and a bad turn keeps nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gateway.turns import FAILURES, MAX_COMMANDS, Turns
from tests.gateway.private_redis import PrivateRedis


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    """A conversation with the session's Redis, emptied."""
    client = Redis.from_url(os.environ["REDIS_URL"])
    await client.flushdb()
    talk = Turns(client, timeout_seconds=5.0)
    yield talk
    await talk.close()


async def test_each_of_many_gets_its_own_answer(turns: Turns) -> None:
    names = [f"k{number}" for number in range(3 * MAX_COMMANDS)]
    for name in names:
        turns.send("SET", name, name)
    answers = await asyncio.gather(*[turns.send("GET", name) for name in names])
    assert answers == [name.encode() for name in names]


async def test_a_refused_command_fails_alone(turns: Turns) -> None:
    turns.send("SET", "text", "x")
    before, refused, after = turns.send("GET", "text"), turns.send("INCR", "text"), turns.send("GET", "text")
    assert [await before, await after] == [b"x", b"x"]
    with pytest.raises(ResponseError):
        await refused


async def test_a_request_that_is_given_up_takes_nobody_elses_answer(turns: Turns) -> None:
    await asyncio.gather(*[turns.send("SET", f"k{number}", number) for number in range(100)])

    async def ask(number: int) -> None:
        asked = turns.send("GET", f"k{number}")
        if random.random() < 0.5:
            await asyncio.sleep(random.random() / 1000)
            asked.cancel()
        else:
            assert await asked == str(number).encode()

    for _ in range(10):
        await asyncio.gather(*[ask(number) for number in range(100)])


async def test_what_comes_while_a_turn_is_under_way_waits_for_the_next(turns: Turns) -> None:
    first = turns.send("SET", "a", 1)
    await asyncio.sleep(0)
    second = turns.send("INCR", "a")
    assert (await first, await second) == (True, 2)


async def test_a_paused_redis_fails_everybody_within_one_turn() -> None:
    async with PrivateRedis() as server:
        talk = Turns(server.client, timeout_seconds=0.1)
        await talk.send("PING")
        server.pause()
        began = asyncio.get_running_loop().time()
        asked = [talk.send("GET", str(number)) for number in range(2 * MAX_COMMANDS)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(answer, FAILURES) for answer in answers)
        assert asyncio.get_running_loop().time() - began < 0.3
        server.resume()
        assert await talk.send("PING") is True


@asynccontextmanager
async def talking_nonsense(answer: bytes) -> AsyncIterator[Turns]:
    """Talk to a server that always says the same."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    talk = Turns(Redis(host="127.0.0.1", port=port, protocol=2), timeout_seconds=0.2)
    try:
        yield talk
    finally:
        await talk.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("answer", [b":abc\r\n", b"nonsense\r\n", b"*x\r\n", b"HTTP/1.1 400\r\n\r\n"])
async def test_a_server_that_talks_nonsense_is_a_redis_that_is_away(answer: bytes) -> None:
    async with talking_nonsense(answer) as talk, asyncio.timeout(5):
        for _ in range(2):
            with pytest.raises(FAILURES):
                await talk.send("GET", "a")
