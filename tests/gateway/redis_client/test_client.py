"""A conversation that many requests share: each gets its own answer, and a Redis that fails keeps nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from gateway.redis_client import client as turns
from gateway.redis_client.client import FAILURES_TO_OPEN, RedisClient
from gateway.redis_client.connection import (
    RedisAddress,
    RedisFailed,
    RedisNotSent,
    RedisReplyError,
    RedisUnavailable,
    Script,
)
from tests.gateway.fixtures.private_redis import PrivateRedis

ECHO = Script.of("return {KEYS[1], ARGV[1]}")


@pytest.fixture
async def talk() -> AsyncIterator[RedisClient]:
    """A conversation with the session's Redis, emptied."""
    async with Redis.from_url(os.environ["REDIS_URL"]) as client:
        await client.flushdb()
    opened = RedisClient(os.environ["REDIS_URL"], timeout_seconds=5.0)
    yield opened
    await opened.close()


async def test_each_of_many_gets_its_own_answer(talk: RedisClient) -> None:
    names = [f"k{number}" for number in range(1000)]
    for name in names:
        talk.fire("SET", name, name)
    answers = await asyncio.gather(*[talk.execute("GET", name) for name in names])
    assert answers == [name.encode() for name in names]


async def test_a_refused_command_fails_alone(talk: RedisClient) -> None:
    talk.fire("SET", "text", "x")
    before, refused, after = talk.execute("GET", "text"), talk.execute("INCR", "text"), talk.execute("GET", "text")
    assert [await before, await after] == [b"x", b"x"]
    with pytest.raises(RedisReplyError, match="not an integer"):
        await refused


async def test_a_request_that_is_given_up_takes_nobody_elses_answer(talk: RedisClient) -> None:
    await asyncio.gather(*[talk.execute("SET", f"k{number}", number) for number in range(100)])

    async def ask(number: int) -> None:
        asked = talk.execute("GET", f"k{number}")
        if random.random() < 0.5:
            await asyncio.sleep(random.random() / 1000)
            asked.cancel()
        else:
            assert await asked == str(number).encode()

    for _ in range(10):
        await asyncio.gather(*[ask(number) for number in range(100)])


async def test_a_reply_that_came_too_late_reaches_nobody_else(talk: RedisClient) -> None:
    names = [f"k{number}" for number in range(50)]
    for name in names:
        talk.fire("SET", name, name)
    await talk.execute("PING")
    answered = 0
    for step in range(40):
        hasty = RedisClient(os.environ["REDIS_URL"], timeout_seconds=0.0002 * (step + 1))
        for _ in range(3):
            found = await asyncio.gather(*[hasty.execute("GET", name) for name in names], return_exceptions=True)
            for name, answer in zip(names, found, strict=True):
                assert isinstance(answer, RedisFailed) or answer == name.encode()
                answered += answer == name.encode()
        await hasty.close()
    assert answered > 0


async def test_a_script_is_called_by_its_name_in_the_order_it_was_asked(talk: RedisClient) -> None:
    talk.register(ECHO)
    talk.fire("SET", "a", 1)
    script = talk.eval(ECHO, 1, "k", "v")
    assert (await talk.execute("INCR", "a"), await script) == (2, [b"k", b"v"])


async def test_a_script_that_redis_was_told_to_forget_is_taught_again(talk: RedisClient) -> None:
    for _ in range(2):
        await talk.execute("SCRIPT", "FLUSH")
        assert await talk.eval(ECHO, 1, "k", "v") == [b"k", b"v"]
        assert await talk.execute("SCRIPT", "EXISTS", ECHO.sha) == [1]


async def test_who_heeds_a_script_hears_its_reply_in_turn_also_once_redis_was_told_to_forget_it(
    talk: RedisClient,
) -> None:
    heard: list[object] = []
    for _ in range(2):
        talk.eval_then(ECHO, 1, "k", "v", on_reply=heard.append)
        talk.eval_then(Script.of("return redis.call('INCR', KEYS[1], 'x')"), 1, "k", on_reply=heard.append)
        await talk.execute("PING")
        await talk.execute("SCRIPT", "FLUSH")
    echoed, refused = heard[::2], heard[1::2]
    assert echoed == [[b"k", b"v"]] * 2
    assert [type(each) for each in refused] == [RedisReplyError] * 2


async def test_who_heeds_and_fails_at_it_fails_alone(talk: RedisClient, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("no such thing")

    talk.register(ECHO)
    talk.eval_then(ECHO, 1, "k", "v", on_reply=fail)
    assert await talk.execute("PING") == b"PONG"
    assert "no such thing" in caplog.text
    assert not talk.failing


async def test_commands_of_one_turn_of_the_loop_travel_in_one_write() -> None:
    chunks: list[bytes] = []
    left = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            chunks.append(data)
            writer.write(b"+OK\r\n" * data.count(b"*2\r\n"))
        writer.close()
        left.set()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    talk = RedisClient(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_seconds=5.0)
    await talk.execute("GET", "warm")
    await asyncio.gather(*[talk.execute("GET", str(number)) for number in range(20)])
    assert [chunk.count(b"GET") for chunk in chunks] == [1, 20]
    await talk.close()
    await left.wait()
    server.close()
    await server.wait_closed()


async def test_a_paused_redis_fails_everybody_in_time_and_is_then_left_alone() -> None:
    async with PrivateRedis() as server:
        talk = RedisClient(server.url, timeout_seconds=0.05)
        await talk.execute("PING")
        server.pause()
        for _ in range(FAILURES_TO_OPEN):
            assert not talk.breaker_open
            heeded: list[object] = []
            talk.eval_then(ECHO, 1, "k", "v", on_reply=heeded.append)
            asked = [talk.execute("GET", str(number)) for number in range(500)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(answer) for answer in (*answers, *heeded)} == {RedisUnavailable}
            assert len(heeded) == 1
        assert talk.breaker_open
        with pytest.raises(RedisNotSent):
            await talk.execute("PING")
        talk.eval_then(ECHO, 1, "k", "v", on_reply=heeded.append)
        assert type(heeded[1]) is RedisNotSent
        server.resume()
        assert await eventually(talk) == b"PONG"
        assert not talk.breaker_open
        await talk.close()


async def test_after_the_pause_one_command_is_let_through_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "OPEN_SECONDS", 0.1)
    async with PrivateRedis() as server:
        talk = RedisClient(server.url, timeout_seconds=0.1)
        server.pause()
        for _ in range(FAILURES_TO_OPEN):
            with pytest.raises(RedisUnavailable):
                await talk.execute("PING")
        talk.timeout_seconds = 30.0
        await asyncio.sleep(2 * turns.OPEN_SECONDS)
        probe, other = talk.execute("PING"), talk.execute("PING")
        with pytest.raises(RedisNotSent):
            await other
        server.resume()
        assert (await probe, await talk.execute("PING")) == (b"PONG", b"PONG")
        await talk.close()


async def test_a_redis_that_was_restarted_is_used_again() -> None:
    async with PrivateRedis() as server:
        talk = RedisClient(server.url, timeout_seconds=5.0)
        talk.register(ECHO)
        await talk.execute("SET", "a", 1)
        server.restart()
        assert await eventually(talk) == b"PONG"
        assert await talk.eval(ECHO, 1, "k", "v") == [b"k", b"v"]
        await talk.close()


async def test_a_password_and_a_database_of_the_url_are_said_first() -> None:
    async with PrivateRedis() as server:
        await server.client.acl_setuser("hearth", enabled=True, passwords=["+s3cret@"], keys=["*"], commands=["+@all"])
        named = server.url.replace("unix://", "unix://hearth:s3cret%40@").replace("db=0", "db=3")
        talk = RedisClient(named, timeout_seconds=5.0)
        assert await talk.execute("ACL", "WHOAMI") == b"hearth"
        assert b"db=3" in await talk.execute("CLIENT", "LIST")
        await talk.close()
        wrong = RedisClient(named.replace("s3cret", "other"), timeout_seconds=5.0)
        with pytest.raises(RedisUnavailable, match="WRONGPASS"):
            await wrong.execute("PING")


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("redis://h", ("", "h", 6379, False, ())),
        ("redis://:p%3A@h:1/2", ("", "h", 1, False, (("AUTH", "p:"), ("SELECT", 2)))),
        ("rediss://u:p@h:1", ("", "h", 1, True, (("AUTH", "u", "p"),))),
        ("unix:///run/r.sock", ("/run/r.sock", "", 0, False, ())),
    ],
)
def test_an_address_is_read_as_redis_py_reads_it(url: str, where: tuple[object, ...]) -> None:
    found = RedisAddress.of(url)
    assert (found.path, found.host, found.port, found.tls is not None, found.login) == where


@asynccontextmanager
async def talking_nonsense(answer: bytes) -> AsyncIterator[RedisClient]:
    """Talk to a server that always says the same."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    talk = RedisClient(f"redis://127.0.0.1:{port}", timeout_seconds=0.2)
    try:
        yield talk
    finally:
        await talk.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("answer", [b":abc\r\n", b"nonsense\r\n", b"*x\r\n", b"HTTP/1.1 400\r\n\r\n"])
async def test_a_server_that_talks_nonsense_is_a_redis_that_is_away(answer: bytes) -> None:
    async with talking_nonsense(answer) as talk, asyncio.timeout(30):
        for _ in range(2):
            with pytest.raises(RedisUnavailable):
                await talk.execute("GET", "a")


async def test_a_redis_that_is_not_there_is_away() -> None:
    talk = RedisClient("unix:///nowhere/redis.sock", timeout_seconds=5.0)
    with pytest.raises(RedisUnavailable, match="cannot connect"):
        await talk.execute("PING")
    await talk.close()


async def eventually(talk: RedisClient) -> object:
    """Return the first PONG after an outage."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(RedisFailed):
            return await talk.execute("PING")
        await asyncio.sleep(0.05)
    raise AssertionError("Redis did not come back")
