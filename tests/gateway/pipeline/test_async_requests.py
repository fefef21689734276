"""A deferred request is stored, runs once through the same pipeline, and is visible to its tenant only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from redis.asyncio import Redis

import hearth.celery  # noqa: F401 - whoever sends a task needs the app configured first
from gateway import tasks
from tenants import keys
from tenants.caller_limits import LimitLine
from tenants.limits import LimitValues, set_limit
from tenants.policy_target import PolicyTarget
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import answer, saying
from tests.gateway.fixtures.tenants import HELLO, Gateway, in_database, until
from tests.tenants.customers import OPERATOR
from workers.models import DeferredRequest

LATER = {"prefer": "respond-async"}
QUEUE = "hearth.celery.inference"


@pytest.fixture(autouse=True)
async def worker(gateway: Gateway) -> AsyncIterator[None]:
    """The inference role's own journey, taken down again."""
    yield
    await asyncio.to_thread(tasks.background.close)


async def poll(gateway: Gateway, request_id: str, key: str | None = None) -> Exchange:
    """Ask for the answer."""
    return await gateway.ask(key=key, method="GET", path=f"/v1/requests/{request_id}")


async def work(request_id: str) -> None:
    """Do what a Celery worker does with the message."""
    await in_database(lambda: tasks.run_deferred(request_id))


async def test_a_deferred_request_is_kept_announced_run_and_polled(gateway: Gateway) -> None:
    accepted = await gateway.ask(headers=LATER)
    ticket = accepted.json
    assert (accepted.status, ticket["object"], ticket["status"]) == (202, "deferred_request", "queued")
    assert accepted.answer_headers["location"] == ticket["url"] == f"/v1/requests/{ticket['id']}"
    assert accepted.answer_headers["x-request-id"] == ticket["id"]
    assert accepted.answer_headers["preference-applied"] == "respond-async"
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        (message,) = await redis.lrange(QUEUE, 0, -1)
    assert ticket["id"] in str(orjson.loads(message))
    assert b"Hello" not in message
    waiting = await poll(gateway, ticket["id"])
    assert (waiting.status, waiting.json["status"], waiting.answer_headers["retry-after"]) == (202, "queued", "1")
    await work(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.status, done.json) == (200, answer())
    assert done.answer_headers["x-request-id"] == ticket["id"]
    (start,), (end,) = gateway.starts(), gateway.ends()
    assert str(start.request_id) == ticket["id"]
    assert (end.state, end.completion_tokens) == ("complete", 3)


async def test_a_message_delivered_twice_runs_the_request_once(gateway: Gateway) -> None:
    ticket = (await gateway.ask(headers=LATER)).json
    await asyncio.gather(work(ticket["id"]), work(ticket["id"]))
    await work(ticket["id"])
    assert sum(len(engine.bodies) for engine in gateway.engines) == 1
    assert len(gateway.ends()) == 1


async def test_a_strangers_request_does_not_exist(gateway: Gateway) -> None:
    ticket = (await gateway.ask(headers=LATER)).json
    await work(ticket["id"])
    stranger = await poll(gateway, ticket["id"], key=gateway.world.globex.secret)
    nobodys = await poll(gateway, str(uuid4()))
    assert (stranger.status, stranger.error["code"]) == (nobodys.status, nobodys.error["code"])
    assert (stranger.status, stranger.error["code"]) == (404, "request_not_found")
    assert b"Hello" not in stranger.body


@pytest.mark.parametrize("text", ["x", "", "../models", "0" * 32 + "'", "%00"])
async def test_an_id_that_is_none_is_not_found(gateway: Gateway, text: str) -> None:
    assert (await poll(gateway, text)).error["code"] == "request_not_found"


async def test_a_deferred_request_counts_once_against_the_limit(gateway: Gateway) -> None:
    acme = gateway.world.acme
    await in_database(lambda: set_limit(OPERATOR, PolicyTarget(tenant=acme.tenant), LimitValues(requests_per_minute=2)))
    await until(lambda: bool(_limits(gateway)))
    accepted = await gateway.ask(headers=LATER)
    assert accepted.answer_headers["x-ratelimit-remaining-requests"] == "1"
    await work(accepted.json["id"])
    assert [(await gateway.ask()).status for _ in range(2)] == [200, 429]


async def test_a_deferred_stream_is_refused(gateway: Gateway) -> None:
    refused = await gateway.ask({**HELLO, "stream": True}, headers=LATER)
    assert (refused.status, refused.error["param"]) == (400, "stream")


async def test_a_bad_deferred_request_is_refused_at_once(gateway: Gateway) -> None:
    refused = await gateway.ask({**HELLO, "model": "nobody"}, headers=LATER)
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    assert not await in_database(DeferredRequest.objects.exists)


async def test_a_key_revoked_meanwhile_opens_nothing(gateway: Gateway) -> None:
    acme = gateway.world.acme
    second = await in_database(lambda: keys.issue(OPERATOR, acme.project, name="second"))
    ticket = (await gateway.ask(key=second.secret, headers=LATER)).json
    await in_database(lambda: keys.revoke(OPERATOR, second.key))
    await work(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.status, done.error["code"]) == (401, "key_revoked")
    assert gateway.records() == []


async def test_the_engines_refusal_is_the_answer(gateway: Gateway) -> None:
    for engine in gateway.engines:
        engine.say = saying({"error": {"message": "too long"}}, status=400)
    ticket = (await gateway.ask(headers={**LATER, "x-request-id": "é", "x-session-id": "s"})).json
    await work(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.status, done.error["message"]) == (400, "too long")


async def test_a_worker_that_cannot_begin_says_so_and_keeps_nobody_waiting(gateway: Gateway, tmp_path: Path) -> None:
    ticket = (await gateway.ask(headers=LATER)).json
    (tmp_path / "wal").rename(tmp_path / "elsewhere")
    (tmp_path / "wal").write_text("not a folder")
    with pytest.raises(OSError, match="File exists"):
        await work(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.status, done.error["code"]) == (500, "deferred_failed")


async def test_a_deferred_request_waits_for_a_replica_as_any_other(gateway: Gateway) -> None:
    await in_database(tenants.stop_replicas)
    ticket = (await gateway.ask(headers=LATER)).json
    working = asyncio.ensure_future(work(ticket["id"]))
    await until(lambda: tasks.background._runtime)
    runtime = tasks.background._runtime
    assert runtime is not None
    rooms = runtime.pipeline._components.replica_queue._usage
    await until(lambda: rooms)
    await in_database(lambda: tenants.place(gateway.world, [engine.port for engine in gateway.engines]))
    await working
    assert (await poll(gateway, ticket["id"])).json == answer()


def _limits(gateway: Gateway) -> tuple[LimitLine, ...]:
    return gateway.runtime.feed.snapshot.callers.caller(gateway.world.acme.key.public_id).limits
