"""Identical requests of several gateway processes run once, whatever becomes of the process that leads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from caching.single_flight import Piece
from gateway.coalescing.peer_connection import MAX_FRAME_BYTES, Failed, Heartbeat, PeerConnection, Subscribe
from gateway.coalescing.peer_listener import PeerListener
from gateway.coalescing.shared_flights import SharedFlights
from gateway.redis_client.client import RedisClient
from tenants.isolation import keyspace
from tests.gateway.fixtures.callers import caller, until
from tests.gateway.fixtures.flight_process import COMMAND, Requests

NAME = bytes(range(32))
WHO = caller()


class Other:
    """Another gateway process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self) -> str:
        """Return the next thing it says."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode().strip()

    def told(self, *lines: str) -> None:
        """Give it commands."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())


@asynccontextmanager
async def another(sockets: Path) -> AsyncIterator[Other]:
    """Run a process that listens there."""
    pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", COMMAND, **pipes)
    other = Other(process)
    where = {"url": os.environ["REDIS_URL"], "sockets": str(sockets)}
    other.told(json.dumps({**where, "tenant": str(WHO.tenant_id), "name": NAME.hex()}))
    try:
        assert await other.says() == "listens"
        yield other
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def this(sockets: Path, *, url: str | None = None, alone: bool = False) -> AsyncIterator[Requests]:
    """Have the flights of a gateway process in this one; ``alone``: no other one lives."""
    turns = RedisClient(url or os.environ["REDIS_URL"], timeout_seconds=5.0)
    requests = Requests(SharedFlights(turns, sockets, lambda: not alone), WHO, NAME)
    await requests.ready()
    try:
        yield requests
    finally:
        await requests.flights.close()
        assert not alone or turns._connection is None
        await turns.close()


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="hearth-g-") as folder:
        yield Path(folder)


def _key(requests: Requests) -> str:
    """Return the key of the lease."""
    return f"hearth:{{{WHO.tenant_id}}}:flight:{requests.flights._listener.folder}:{NAME.hex()}"


async def _led(requests: Requests, times: int) -> bool:
    return requests.led == times


async def _leading(requests: Requests) -> asyncio.Task[str]:
    """Send a request, and return once it leads."""
    running = asyncio.ensure_future(requests.one())
    await until(lambda: _led(requests, 1))
    return running


async def _followed(requests: Requests, first: bytes = b"one") -> bool:
    """Return whether a mirror has sent this first piece."""
    flight = requests.flights.find(NAME)
    return flight is not None and bool(flight.pieces) and flight.pieces[0].events == first


async def test_a_hundred_streams_of_two_processes_are_one_flight(redis: Redis, sockets: Path) -> None:
    async with another(sockets) as other, this(sockets) as here:
        other.told("ask 50")
        assert await other.says() == "leads"
        other.told("add one")
        running = [asyncio.ensure_future(here.one()) for _ in range(50)]
        await until(lambda: _followed(here))
        other.told("add -two", "land")
        assert [await other.says() for _ in range(50)] == ["heard one-two"] * 50
        assert await asyncio.gather(*running) == ["one-two"] * 50
        assert here.led == 0
        await until(lambda: _empty(redis))


async def _empty(redis: Redis) -> bool:
    return bool(await redis.dbsize() == 0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_of_a_process_that_dies_or_freezes_one_follower_takes_the_lead(
    redis: Redis, sockets: Path, how: signal.Signals
) -> None:
    async with another(sockets) as leader, this(sockets) as here, this(sockets) as third:
        leader.told("ask 1")
        assert await leader.says() == "leads"
        leader.told("add one")
        running = [asyncio.ensure_future(each.one()) for each in (here, third) for _ in range(10)]
        await until(lambda: _followed(here))
        await until(lambda: _followed(third))
        leader.process.send_signal(how)

        async def promoted() -> bool:
            return here.led + third.led > 0

        await until(promoted)
        new = here if here.led else third
        new.leading.add(Piece("content", b"two"))
        other = third if new is here else here
        await until(lambda: _followed(other, b"two"))
        new.leading.complete(None)
        assert await asyncio.gather(*running) == ["two"] * 20
        assert here.led + third.led == 1


async def test_a_flight_that_fails_is_led_again_by_one(redis: Redis, sockets: Path) -> None:
    async with another(sockets) as other, this(sockets) as here:
        other.told("ask 1")
        assert await other.says() == "leads"
        other.told("add one")
        running = [asyncio.ensure_future(here.one()) for _ in range(5)]
        await until(lambda: _followed(here))
        other.told("fail")
        said = asyncio.ensure_future(other.says())

        async def promoted() -> bool:
            return here.led == 1 or said.done()

        await until(promoted)
        if here.led:
            here.leading.add(Piece("content", b"two"))
            here.leading.complete(None)
            assert await said == "heard two"
        else:
            assert said.result() == "leads"
            other.told("add two", "land")
            assert await other.says() == "heard two"
        assert await asyncio.gather(*running) == ["two"] * 5


async def test_processes_of_two_hosts_run_their_own(redis: Redis, sockets: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hearth-g-") as folder:
        async with this(sockets) as leader, this(Path(folder)) as elsewhere:
            led = await _leading(leader)
            own = await _leading(elsewhere)
            for each, text in ((leader, b"one"), (elsewhere, b"two")):
                each.leading.add(Piece("content", text))
                each.leading.complete(None)
            assert [await led, await own] == ["one", "two"]


async def test_a_process_that_ended_refuses_connections_at_once(sockets: Path) -> None:
    ended, other = PeerListener(sockets), PeerListener(sockets)
    for each in (ended, other):
        await each.open(asyncio.Protocol)
    address = ended.address
    ended.close()
    with pytest.raises(ConnectionRefusedError):
        await other.connect(address, asyncio.Protocol)
    other.close()


async def test_a_folder_that_other_users_may_open_is_not_used(sockets: Path) -> None:
    await asyncio.to_thread(sockets.chmod, 0o755)
    with pytest.raises(PermissionError, match="0700"):
        await PeerListener(sockets).open(asyncio.Protocol)


async def test_a_leader_whose_followers_all_left_is_told(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as leader, this(sockets) as here:
        led = await _leading(leader)
        alone = asyncio.Event()
        leader.leading.on_abandoned = alone.set
        leader.leading.add(Piece("content", b"one"))
        running = asyncio.ensure_future(here.one())
        await until(lambda: _followed(here))
        assert leader.leading.followers == 1
        running.cancel()
        async with asyncio.timeout(60):
            await alone.wait()
        leader.leading.complete(None)
        assert await led == "one"


async def test_who_asks_elsewhere_just_after_an_answer_was_stored_is_told_it(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as leader, this(sockets) as here:
        led = await _leading(leader)
        leader.leading.add(Piece("content", b"one"))
        leader.leading.complete(None, stays=True)
        assert [*await asyncio.gather(led, here.one())] == ["one", "one"]
        assert here.led == 0
        await until(lambda: _empty(redis))


async def test_without_redis_each_process_runs_its_own(sockets: Path) -> None:
    async with this(sockets, url="redis://127.0.0.1:1") as here:
        running = await _leading(here)
        here.leading.add(Piece("content", b"own"))
        here.leading.complete(None)
        assert await running == "own"


async def test_a_process_that_lives_alone_asks_redis_nothing(sockets: Path) -> None:
    async with this(sockets, alone=True) as here:
        running = [asyncio.ensure_future(here.one()) for _ in range(3)]
        await until(lambda: _led(here, 1))
        here.leading.add(Piece("content", b"own"))
        here.leading.complete(None, stays=True)
        assert await asyncio.gather(*running) == ["own"] * 3


async def test_a_lease_of_a_process_that_says_nothing_keeps_nobody_waiting_for_ever(
    redis: Redis, sockets: Path
) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    silent = await asyncio.start_unix_server(say_nothing, sockets / "0123456789abcdef.s")
    packed = b"8 bytes." + b"0123456789abcdef"
    async with silent, this(sockets) as here:
        await redis.set(_key(here), keyspace.value_mac(NAME, packed) + packed)
        running = [asyncio.ensure_future(here.one()) for _ in range(3)]
        await until(lambda: _led(here, 1))
        here.leading.add(Piece("content", b"own"))
        here.leading.complete(None)
        assert await asyncio.gather(*running) == ["own"] * 3
        assert here.led == 1


async def test_a_lease_that_no_gateway_made_leads_nobody_astray(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as here:
        await redis.set(_key(here), b"\0" * 40 + b"0123456789abcdef")
        running = await _leading(here)
        here.leading.complete(None)
        assert await running == ""


async def test_what_is_no_frame_ends_the_connection(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as leader:
        running = await _leading(leader)
        leader.leading.add(Piece("content", b"secret"))
        path = sockets / f"{leader.flights._listener.address}.s"
        for sent in ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), b"\0\0\0\4what"):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(sent)
            async with asyncio.timeout(60):
                assert b"secret" not in await reader.read()
            writer.close()
        leader.leading.complete(None)
        assert await running == "secret"


async def test_a_process_without_the_lease_receives_no_flight(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as leader:
        running = await _leading(leader)
        lease = leader.flights._leases.find(NAME)
        assert lease is not None
        heard: asyncio.Queue[Any] = asyncio.Queue()

        def receive(_: PeerConnection, message: Any) -> None:
            if message != Heartbeat():
                heard.put_nowait(message)

        peer = PeerConnection(receive, lambda _: None)
        await leader.flights._listener.connect(leader.flights._listener.address, lambda: peer)
        tenant = WHO.tenant_id.bytes
        for number, request in enumerate(
            [
                Subscribe(0, uuid4().bytes, NAME, lease.value),
                Subscribe(1, tenant, NAME, lease.value[:-1] + bytes([lease.value[-1] ^ 1])),
                Subscribe(2, tenant, NAME[::-1], lease.value),
            ]
        ):
            peer.send(request)
            async with asyncio.timeout(60):
                assert await heard.get() == Failed(number)
        peer.drop()
        leader.leading.complete(None)
        await running
