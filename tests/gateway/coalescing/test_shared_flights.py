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
from gateway.coalescing.peer_connection import Failed, Link, Wish
from gateway.coalescing.peer_handshake import NotProved, Proof
from gateway.coalescing.peer_listener import Elsewhere, Listener, Place
from gateway.coalescing.shared_flights import MAX_STRANGERS, SharedFlights
from gateway.redis_client.client import Turns
from tenants import keyspace
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
async def another(sockets: Path, *, host: str = "") -> AsyncIterator[Other]:
    """Run a process that listens there."""
    pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", COMMAND, **pipes)
    other = Other(process)
    place = {"url": os.environ["REDIS_URL"], "sockets": str(sockets), "host": host}
    other.told(json.dumps({**place, "tenant": str(WHO.tenant_id), "name": NAME.hex()}))
    try:
        assert await other.says() == "listens"
        yield other
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def this(
    sockets: Path, *, host: str = "", url: str | None = None, alone: bool = False
) -> AsyncIterator[Requests]:
    """Have the flights of a gateway process in this one; ``alone``: no other one lives."""
    turns = Turns(url or os.environ["REDIS_URL"], timeout_seconds=5.0)
    requests = Requests(SharedFlights(turns, Place(sockets=sockets, host=host), lambda: not alone), WHO, NAME)
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


async def _led(requests: Requests, times: int) -> bool:
    return requests.led == times


async def _leading(requests: Requests) -> asyncio.Task[str]:
    """Send a request, and return once it leads."""
    running = asyncio.ensure_future(requests.one())
    await until(lambda: _led(requests, 1))
    return running


async def _followed(requests: Requests, first: bytes = b"one") -> bool:
    """Say whether a mirror has told this first piece."""
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
        new.leading.land(None)
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
            here.leading.land(None)
            assert await said == "heard two"
        else:
            assert said.result() == "leads"
            other.told("add two", "land")
            assert await other.says() == "heard two"
        assert await asyncio.gather(*running) == ["two"] * 5


async def test_processes_of_two_hosts_follow_each_other_over_tcp(redis: Redis, sockets: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hearth-g-") as folder:
        await _follows_over_tcp(Path(folder), sockets)


async def _follows_over_tcp(elsewhere: Path, sockets: Path) -> None:
    async with another(elsewhere, host="127.0.0.1") as other, this(sockets, host="127.0.0.1") as here:
        other.told("ask 1")
        assert await other.says() == "leads"
        running = asyncio.ensure_future(here.one())
        other.told("add one")
        await until(lambda: _followed(here))
        other.told("land")
        assert await running == "one"
        assert here.led == 0


async def test_a_process_that_ended_here_is_not_taken_for_one_of_another_host(sockets: Path) -> None:
    ended, other = Listener(Place(sockets=sockets)), Listener(Place(sockets=sockets))
    with tempfile.TemporaryDirectory(prefix="hearth-g-") as folder:
        elsewhere = Listener(Place(sockets=Path(folder)))
        for each in (ended, other, elsewhere):
            await each.open(lambda *_: asyncio.Protocol())
        address = ended.address
        ended.close()
        with pytest.raises(ConnectionRefusedError):
            await other.connect(address, asyncio.Protocol)
        with pytest.raises(Elsewhere):
            await other.connect(elsewhere.address, asyncio.Protocol)
        for each in (other, elsewhere):
            each.close()


async def test_a_leader_whose_followers_all_left_is_told(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as leader, this(sockets) as here:
        led = await _leading(leader)
        alone = asyncio.Event()
        leader.leading.on_alone = alone.set
        leader.leading.add(Piece("content", b"one"))
        running = asyncio.ensure_future(here.one())
        await until(lambda: _followed(here))
        assert leader.leading.followers == 1
        running.cancel()
        async with asyncio.timeout(60):
            await alone.wait()
        leader.leading.land(None)
        assert await led == "one"


async def test_who_asks_elsewhere_just_after_an_answer_was_stored_is_told_it(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as leader, this(sockets) as here:
        led = await _leading(leader)
        leader.leading.add(Piece("content", b"one"))
        leader.leading.land(None, stays=True)
        assert [*await asyncio.gather(led, here.one())] == ["one", "one"]
        assert here.led == 0
        await until(lambda: _empty(redis))


async def test_strangers_from_elsewhere_keep_no_process_of_this_host_out(redis: Redis, sockets: Path) -> None:
    async with this(sockets, host="127.0.0.1") as leader, this(sockets) as here:
        led = await _leading(leader)
        leader.leading.add(Piece("content", b"one"))
        host, _, port = leader.flights._listener.address.rpartition(" ")[2].partition(":")
        strangers = [await asyncio.open_connection(host, int(port)) for _ in range(MAX_STRANGERS)]
        running = asyncio.ensure_future(here.one())
        await until(lambda: _followed(here))
        for _, writer in strangers:
            writer.close()
        leader.leading.land(None)
        assert [await led, await running] == ["one", "one"]


async def test_without_redis_each_process_runs_its_own(sockets: Path) -> None:
    async with this(sockets, url="redis://127.0.0.1:1") as here:
        running = await _leading(here)
        here.leading.add(Piece("content", b"own"))
        here.leading.land(None)
        assert await running == "own"


async def test_a_process_that_lives_alone_asks_redis_nothing(sockets: Path) -> None:
    async with this(sockets, alone=True) as here:
        running = [asyncio.ensure_future(here.one()) for _ in range(3)]
        await until(lambda: _led(here, 1))
        here.leading.add(Piece("content", b"own"))
        here.leading.land(None, stays=True)
        assert await asyncio.gather(*running) == ["own"] * 3


async def test_a_lease_of_a_process_that_says_nothing_keeps_nobody_waiting_for_ever(
    redis: Redis, sockets: Path
) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = f"0123456789abcdef elsewhere 127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    packed = b"8 bytes." + address.encode()
    await redis.set(f"hearth:{{{WHO.tenant_id}}}:flight:{NAME.hex()}", keyspace.value_mac(NAME, packed) + packed)
    async with silent, this(sockets) as here:
        running = [asyncio.ensure_future(here.one()) for _ in range(3)]
        await until(lambda: _led(here, 1))
        here.leading.add(Piece("content", b"own"))
        here.leading.land(None)
        assert await asyncio.gather(*running) == ["own"] * 3
        assert here.led == 1


async def test_a_lease_that_no_gateway_made_leads_nobody_astray(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as here:
        lease = f"hearth:{{{WHO.tenant_id}}}:flight:{NAME.hex()}"
        await redis.set(lease, b"\0" * 40 + b"0123456789abcdef 203.0.113.1:1")
        running = await _leading(here)
        here.leading.land(None)
        assert await running == ""


async def test_a_stranger_on_the_socket_learns_nothing_but_a_nonce(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as leader:
        running = await _leading(leader)
        leader.leading.add(Piece("content", b"secret"))
        path = sockets / f"{leader.flights._listener.address.split()[0]}.s"
        reader, writer = await asyncio.open_unix_connection(path)
        first = await reader.readexactly(32)
        writer.write(b"\0" * 64)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.readexactly(32) != first
        writer.close()
        leader.leading.land(None)
        assert await running == "secret"


async def test_who_knows_the_key_hears_of_no_flight_without_its_lease(redis: Redis, sockets: Path) -> None:
    async with this(sockets) as leader:
        running = await _leading(leader)
        lease = leader.flights._leases.find(NAME)
        assert lease is not None
        heard: asyncio.Queue[Any] = asyncio.Queue()
        link = Link("caller", leader.flights._listener.address, lambda _, said: heard.put_nowait(said), lambda _: None)
        await leader.flights._listener.connect(leader.flights._listener.address, lambda: link)
        assert await link.proved
        tenant = WHO.tenant_id.bytes
        for number, wish in enumerate(
            [
                Wish(0, uuid4().bytes, NAME, lease.value),
                Wish(1, tenant, NAME, lease.value[:-1] + b"0"),
                Wish(2, tenant, NAME[::-1], lease.value),
            ]
        ):
            link.send(wish)
            async with asyncio.timeout(60):
                assert await heard.get() == Failed(number)
        link.drop()
        leader.leading.land(None)
        await running


def proofs() -> tuple[Proof, Proof, bytes]:
    """Return both sides once they know each other, and what the caller said."""
    caller_side, listener = Proof("caller", "there"), Proof("listener", "there")
    said = caller_side.feed(listener.opening())
    caller_side.feed(listener.feed(said))
    assert caller_side.done
    assert listener.done
    return caller_side, listener, said


def test_a_proof_that_is_repeated_or_meant_for_another_listener_proves_nothing() -> None:
    _, _, said = proofs()
    with pytest.raises(NotProved):
        Proof("listener", "there").feed(said)
    asked, listener = Proof("caller", "here"), Proof("listener", "there")
    with pytest.raises(NotProved):
        listener.feed(asked.feed(listener.opening()))
    asked = Proof("caller", "there")
    asked.feed(Proof("listener", "there").opening())
    with pytest.raises(NotProved):
        asked.feed(b"\0" * 32)


def test_a_frame_that_is_altered_repeated_or_sent_back_is_refused() -> None:
    def hears(side: Proof, frame: bytes) -> list[bytes]:
        side.feed(frame)
        return list(side.frames())

    asked, listener, _ = proofs()
    frame = asked.seal(b"wish")
    assert hears(listener, frame) == [b"wish"]
    with pytest.raises(NotProved):
        hears(listener, frame)
    asked, listener, _ = proofs()
    with pytest.raises(NotProved):
        hears(asked, asked.seal(b"wish"))
    with pytest.raises(NotProved):
        hears(listener, asked.seal(b"wish")[:-1] + b"?")
