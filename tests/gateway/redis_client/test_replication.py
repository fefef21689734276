"""Behind Sentinels an Idempotency-Key is on a replica before its request runs, so that a failover loses none."""

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


@asynccontextmanager
async def gateway(servers: SentinelSet, folder: Path, *, wait_seconds: float = 60.0) -> AsyncIterator[Idempotency]:
    """Yield the idempotency keys of a gateway of its own host."""
    await asyncio.to_thread(folder.mkdir)
    locks = KeyLocks(folder)
    writes = ReplicatedWrites(servers.url, timeout_seconds=60.0, wait_seconds=wait_seconds)
    unused = RedisClient(servers.url, timeout_seconds=60.0)
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
            assert keys.replicated is not None
            assert not await keys.replicated.confirm()
        finally:
            servers.signal(replica, signal.SIGCONT)
        await _eventually(keys.replicated.confirm)


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
