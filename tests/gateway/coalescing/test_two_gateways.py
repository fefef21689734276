"""Identical streams at two gateway processes, over HTTP, whatever becomes of Redis or of the process that leads."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from billing.wal import reader
from billing.wal.records import End
from billing.wal.segments import segments
from tests.gateway.coalescing.test_coalescer import Paced
from tests.gateway.fixtures.scripted_app import ScriptedEngine, text_of
from tests.gateway.fixtures.tenants import STREAMED, World, place, until
from tests.gateway.fixtures.two_gateways import PATIENCE_SECONDS, Gateways, two_gateways

FOLLOWERS = 10
#: What a stream has sent when its engine pauses.
TOLD = 2

Engines = tuple[ScriptedEngine, ScriptedEngine]


@dataclass(frozen=True, slots=True)
class Heard:
    """What one client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def whole(self) -> bool:
        """Return whether it is all of the answer, and nothing else."""
        events = [event for event in self.body.split(b"\n\n") if event and not event.startswith(b":")]
        return self.status == 200 and text_of(events) == "Hello" and events[-1] == b"data: [DONE]"


@dataclass(slots=True)
class Client:
    """A client that reads a stream."""

    body: bytearray
    task: asyncio.Task[Heard]

    async def paused(self) -> None:
        """Wait until it has read everything the engine sends before its pause."""
        await until(lambda: self.body.count(b"data:") == TOLD, PATIENCE_SECONDS)


def start(gateways: Gateways, process: int, body: dict[str, Any]) -> Client:
    """Send a request to one of the processes."""
    heard = bytearray()

    async def run() -> Heard:
        async with await gateways.ask(process, body) as response:
            async for piece in response.content.iter_any():
                heard.extend(piece)
            return Heard(response.status, {k.lower(): v for k, v in response.headers.items()}, bytes(heard))

    return Client(heard, asyncio.create_task(run()))


def asked() -> dict[str, Any]:
    """Return a streamed request that nobody has sent before."""
    return {**STREAMED, "messages": [{"role": "user", "content": str(uuid4())}]}


def paced(engines: Engines) -> Paced:
    """Let both engines pause in the middle of the next answer; nothing that they were asked before counts."""
    engine = Paced()
    for each in engines:
        each.say = engine.say
        each.bodies.clear()
    return engine


async def introduced(gateways: Gateways, engines: Engines) -> None:
    """Wait until both processes know of each other: what one asks is then not asked by the other."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        runs = 2
        while runs != 1:
            engine, body = paced(engines), asked()
            first = start(gateways, 0, body)
            await first.paused()
            second = start(gateways, 1, body)
            await second.paused()
            runs = engine.runs
            engine.go_on.set()
            await asyncio.gather(first.task, second.task)


async def led_and_followed(gateways: Gateways, body: dict[str, Any]) -> tuple[Client, list[Client]]:
    """Start a leader at the first process and followers at the second; all have read everything sent so far."""
    leader = start(gateways, 0, body)
    await leader.paused()
    followers = [start(gateways, 1, body) for _ in range(FOLLOWERS)]
    for each in followers:
        await each.paused()
    return leader, followers


async def ends(clients: list[Client]) -> list[Heard]:
    """Wait for whole answers; nobody waits for ever."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        heard = await asyncio.gather(*[each.task for each in clients])
    assert [each.whole for each in heard] == [True] * len(clients)
    assert len({each.headers["x-request-id"] for each in heard}) == len(clients)
    return heard


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_followers_elsewhere_get_whole_answers_though_redis_hangs_or_the_leader_freezes_or_dies(
    two_tenants: World, engines: Engines, app_database_url: str
) -> None:
    await asyncio.to_thread(place, two_tenants, [engine.port for engine in engines])
    async with two_gateways(app_database_url, two_tenants.acme.secret) as gateways:
        await introduced(gateways, engines)
        await _redis_hangs(gateways, engines)
        await _leader(gateways, engines, signal.SIGSTOP)
        gateways.processes[0].send(signal.SIGCONT)
        await introduced(gateways, engines)
        await _leader(gateways, engines, signal.SIGKILL)


async def _redis_hangs(gateways: Gateways, engines: Engines) -> None:
    engine, body = paced(engines), asked()
    leader, followers = await led_and_followed(gateways, body)
    gateways.redis.pause()
    try:
        followers.append(start(gateways, 1, body))
        await followers[-1].paused()
        engine.go_on.set()
        heard = await ends([leader, *followers])
    finally:
        gateways.redis.resume()
    assert engine.runs == 1
    assert [each.headers["x-cache"] for each in heard] == ["miss"] + ["coalesced"] * len(followers)


async def _leader(gateways: Gateways, engines: Engines, how: signal.Signals) -> None:
    """Freeze or kill the process that leads: one of those that follow asks again, and the others follow that one."""
    engine, body = paced(engines), asked()
    leader, followers = await led_and_followed(gateways, body)
    gateways.processes[0].send(how)
    await until(lambda: engine.runs == 2, PATIENCE_SECONDS)
    engine.go_on.set()
    heard = await ends(followers)
    assert engine.runs == 2
    ids = {each.headers["x-request-id"] for each in heard}
    found = [end for end in _ends(gateways) if str(end.request_id) in ids]
    assert sorted(end.cache_result for end in found) == ["coalesced"] * (FOLLOWERS - 1) + ["miss"]
    assert {end.state for end in found} == {"complete"}
    if how == signal.SIGKILL:
        with pytest.raises(aiohttp.ClientError):
            await leader.task
    else:
        gateways.processes[0].send(signal.SIGCONT)
        assert (await leader.task).whole


def _ends(gateways: Gateways) -> list[End]:
    found = []
    for segment in segments(gateways.wal):
        for item in reader.read(segment, 0, final=False):
            if isinstance(item, reader.FoundRecord) and isinstance(item.record, End):
                found.append(item.record)
    return found
