"""Where Redis has a replica, that has an Idempotency-Key before its request runs, so that a failover loses none."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from gateway.errors import Conflict, Unavailable
from gateway.pipeline.idempotency import HEADER, Idempotency
from gateway.pipeline.key_locks import KeyLocks
from gateway.protocols.endpoint_table import endpoint_for_errors
from gateway.redis_client.client import RedisClient
from gateway.redis_client.connection import RedisUnavailable
from gateway.redis_client.replication import ReplicatedWrites
from gateway.request import Request, RequestTimeline, Response
from tenants.ids import new_id
from tests.gateway.fixtures.idempotency_process import caller
from tests.replicated import redis as replicated
from tests.replicated.redis import SentinelSet

PATIENCE_SECONDS = 60.0
PATH = "/v1/chat/completions"
WHO = caller(str(uuid4()), str(uuid4()))
WAITS = "cmdstat_wait"
T = TypeVar("T")


@pytest.fixture
def servers() -> Iterator[SentinelSet]:
    with replicated.running() as made:
        yield made


@pytest.fixture
def pair() -> Iterator[SentinelSet]:
    with replicated.pair() as made:
        yield made


@asynccontextmanager
async def gateway(servers: SentinelSet, folder: Path, *, wait_seconds: float = 60.0) -> AsyncIterator[Idempotency]:
    """Yield the idempotency keys of a gateway of its own host."""
    await asyncio.to_thread(folder.mkdir)
    locks = KeyLocks(folder)
    url = servers.url if servers.sentinels else servers.url_of_first
    writes = ReplicatedWrites(url, timeout_seconds=60.0, wait_seconds=wait_seconds, has_replica=bool(servers.sentinels))
    unused = RedisClient(url, timeout_seconds=60.0)
    try:
        yield Idempotency(unused, locks, replicated=writes)
    finally:
        await writes.redis.close()
        await unused.close()
        locks.close()


async def ask(keys: Idempotency, text: str, work: Callable[[], Awaitable[Response]]) -> Response:
    """Send a request under a key."""
    timeline = RequestTimeline(
        request_id=new_id(),
        request_name="r",
        client_request_id="",
        started_at_ns=time.time_ns(),
        started=0.0,
        endpoint=endpoint_for_errors(PATH),
    )
    return await keys.once(WHO, Request(method="POST", path=PATH, headers={HEADER: text}, body=b"{}"), timeline, work)


async def answer() -> Response:
    return Response(status=200, headers=[], body=b"an answer")


async def refused() -> Response:
    raise AssertionError("the request runs a second time")


def waits(servers: SentinelSet, port: int) -> int:
    """Return how many WAITs a server has been sent."""
    with servers.server(port) as redis:
        return int(redis.info("commandstats").get(WAITS, {"calls": 0})["calls"])


async def test_a_request_runs_once_a_replica_has_its_key_and_a_failover_loses_neither_key_nor_response(
    servers: SentinelSet, tmp_path: Path
) -> None:
    primary = await asyncio.to_thread(servers.primary)
    (replica,) = (port for port in servers.servers if port != primary)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> Response:
        began.set()
        await go_on.wait()
        return await answer()

    async with gateway(servers, tmp_path / "first") as first, gateway(servers, tmp_path / "second") as second:
        await ask(first, "warm", answer)
        servers.signal(replica, signal.SIGSTOP)
        running = asyncio.ensure_future(ask(first, "order", slow))
        await _until(lambda: _claims(servers, primary) == 2 and waits(servers, primary) == 3)
        assert not began.is_set(), "no replica has the key"
        servers.signal(replica, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await began.wait()
        assert await asyncio.to_thread(_claims, servers, replica) == 2

        await asyncio.to_thread(servers.kill, primary)
        with pytest.raises(Conflict):
            await _eventually(lambda: ask(second, "order", refused))
        await asyncio.to_thread(servers.replace_missing)  # without a replica the response would wait for one
        go_on.set()
        assert (await running).body == b"an answer"
        again = await _eventually(lambda: ask(second, "order", refused))
        assert again.body == b"an answer"
        assert (b"idempotent-replayed", b"true") in again.headers


@pytest.mark.long
async def test_without_an_answer_of_a_replica_requests_run_and_soon_do_not_wait_for_it(
    servers: SentinelSet, tmp_path: Path
) -> None:
    primary = await asyncio.to_thread(servers.primary)
    (replica,) = (port for port in servers.servers if port != primary)
    async with gateway(servers, tmp_path / "only", wait_seconds=0.05) as keys:
        await ask(keys, "warm", answer)
        servers.signal(replica, signal.SIGSTOP)
        try:
            assert (await ask(keys, "order", answer)).body == b"an answer"
            assert not await confirm(keys)
        finally:
            servers.signal(replica, signal.SIGCONT)
        await _eventually(lambda: confirm(keys))


async def test_a_server_without_sentinels_that_has_a_replica_waits_for_it_and_one_without_does_not(
    pair: SentinelSet, tmp_path: Path
) -> None:
    primary, replica = pair.servers
    began = asyncio.Event()

    async def work() -> Response:
        began.set()
        return await answer()

    async with gateway(pair, tmp_path / "first") as keys:
        pair.signal(replica, signal.SIGSTOP)
        running = asyncio.ensure_future(ask(keys, "order", work))
        await _until(lambda: _claims(pair, primary) == 1 and waits(pair, primary) == 1)
        assert not began.is_set(), "the replica has no key"
        pair.signal(replica, signal.SIGCONT)
        assert (await running).body == b"an answer"
    before = await asyncio.to_thread(waits, pair, primary)
    await asyncio.to_thread(pair.kill, replica)
    await _until(lambda: not _replicas(pair, primary))
    async with gateway(pair, tmp_path / "second") as keys:
        assert (await ask(keys, "next", answer)).body == b"an answer"
    assert await asyncio.to_thread(waits, pair, primary) == before


async def test_what_one_connection_wrote_is_not_confirmed_by_the_next(pair: SentinelSet, tmp_path: Path) -> None:
    """The next one may lead to another server, whose replica has all of that server and not what was written."""
    primary, replica = pair.servers
    async with gateway(pair, tmp_path / "only") as keys:
        assert keys.replicated is not None
        connection = keys.replicated.connection
        await keys.redis.execute("SET", "claim", "1")
        assert await keys.replicated.confirm(connection)
        pair.signal(replica, signal.SIGSTOP)
        try:
            await keys.redis.execute("SET", "claim", "2")
            await asyncio.to_thread(_end_connections, pair, primary)
            await _until(lambda: keys.redis.ended_connections > connection)
            with pytest.raises(RedisUnavailable):
                await keys.replicated.confirm(connection)
        finally:
            pair.signal(replica, signal.SIGCONT)


async def test_a_response_that_is_stored_again_waits_for_a_replica_again(pair: SentinelSet, tmp_path: Path) -> None:
    primary, replica = pair.servers
    began = asyncio.Event()

    async def work() -> Response:
        pair.signal(replica, signal.SIGSTOP)
        began.set()
        return await answer()

    async with gateway(pair, tmp_path / "only") as keys:
        running = asyncio.ensure_future(ask(keys, "order", work))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await began.wait()  # the claim's own WAIT is over
            await _until(lambda: _blocked(pair, primary) == 1)
            await asyncio.to_thread(_end_connections, pair, primary)
            assert (await running).body == b"an answer", "Redis has failed once"
            await _until(lambda: _blocked(pair, primary) == 1 or not keys.storing)
            assert keys.storing, "no replica has the response"
        finally:
            pair.signal(replica, signal.SIGCONT)
        await _until(lambda: not keys.storing)


async def confirm(keys: Idempotency) -> bool:
    """Return whether a replica has what was written."""
    assert keys.replicated is not None
    return await keys.replicated.confirm(keys.replicated.connection)


async def _eventually(send: Callable[[], Awaitable[T]]) -> T:
    """Repeat what Redis makes impossible for a while, as clients do, until it returns something true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(Unavailable):
            if found := await send():
                return found
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.1)


async def _until(condition: Callable[[], bool]) -> None:
    await _eventually(lambda: asyncio.to_thread(condition))


def _claims(servers: SentinelSet, port: int) -> int:
    with servers.server(port) as redis:
        return sum(1 for name in redis.scan_iter("hearth:*:idempotency:*"))


def _replicas(servers: SentinelSet, port: int) -> int:
    with servers.server(port) as redis:
        return int(redis.info("replication")["connected_slaves"])


def _blocked(servers: SentinelSet, port: int) -> int:
    with servers.server(port) as redis:
        return int(redis.info("clients")["blocked_clients"])


def _end_connections(servers: SentinelSet, port: int) -> None:
    with servers.server(port) as redis:
        redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
