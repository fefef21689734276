"""A deferred request is stored, runs once through the same pipeline, and is visible to its tenant only."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from django.db import connection, transaction
from django.utils import timezone
from redis.asyncio import Redis

import hearth.celery  # noqa: F401 - whoever sends a task needs the app configured first
from billing.drain.drain import Drain
from billing.models import UsageRecord
from billing.wal.records import Withdrawn
from gateway import tasks
from gateway.pipeline import async_requests
from tenants.caller_limits import LimitLine
from tenants.keys import keys
from tenants.policy.limits import LimitValues, set_limit
from tenants.policy.policy_target import PolicyTarget
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.budget import MOST_NEW_TOKENS, body, budgeted, held_pico
from tests.gateway.fixtures.scripted_app import after, answer, saying, silence
from tests.gateway.fixtures.tenants import HELLO, Gateway, in_database, until
from tests.tenants.customers import OPERATOR
from workers.deferred import claims, store
from workers.models import DeferredRequest

LATER = {"prefer": "respond-async"}
QUEUE = "hearth.celery.inference"
#: Number of an advisory lock.
COMMITS = 4711


@pytest.fixture(autouse=True)
async def worker(gateway: Gateway, emptied: None) -> AsyncIterator[None]:
    """The inference role's own journey, taken down again."""
    yield
    await asyncio.to_thread(tasks.background.close)


async def poll(gateway: Gateway, request_id: str, key: str | None = None) -> Exchange:
    """Ask for the answer."""
    return await gateway.ask(key=key, method="GET", path=f"/v1/requests/{request_id}")


async def work(request_id: str) -> None:
    """Do what a Celery worker does with the message."""
    await in_database(lambda: tasks.run_deferred(request_id))


async def work_again(request_id: str) -> None:
    """Do the same after the pause between two attempts."""
    await in_database(lambda: DeferredRequest.objects.filter(id=request_id).update(retry_at=None))
    await work(request_id)


def charges() -> list[tuple[str, int]]:
    """Return the id and completion tokens of every stored usage row of tenants; those of retries cost nothing."""
    assert not UsageRecord.objects.filter(purpose="retry").exclude(amount_pico=0).exclude(amount_pico=None).exists()
    return [(str(row.id), row.completion_tokens) for row in UsageRecord.objects.filter(purpose="tenant")]


def retries() -> int:
    """Return how many failed attempts have a row."""
    return UsageRecord.objects.filter(purpose="retry").count()


async def test_a_deferred_request_is_kept_announced_run_and_polled(gateway: Gateway) -> None:
    accepted = await gateway.ask(headers=LATER)
    ticket = accepted.json
    assert (accepted.status, ticket["object"], ticket["status"]) == (202, "deferred_request", "queued")
    assert accepted.answer_headers["location"] == ticket["url"] == f"/v1/requests/{ticket['id']}"
    assert accepted.answer_headers["x-request-id"] == ticket["id"]
    assert accepted.answer_headers["preference-applied"] == "respond-async"
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        await asyncio.to_thread(async_requests._broker.submit(int).result)  # every message before has been sent
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


async def test_the_headers_that_name_its_session_are_stored(gateway: Gateway) -> None:
    await gateway.set_policy(session_headers=("x-thread-id",))
    sent = {**LATER, "x-thread-id": "t", "x-session-id": "s", "x-other": "o"}
    ticket = (await gateway.ask(headers=sent)).json
    row = await in_database(lambda: DeferredRequest.objects.get(id=ticket["id"]))
    assert row.headers == {"x-thread-id": "t"}
    await work(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.status, done.answer_headers["x-route"].partition(";")[0]) == (200, "session")


async def test_a_worker_that_cannot_begin_tries_again_and_then_says_so(gateway: Gateway, tmp_path: Path) -> None:
    ticket = (await gateway.ask(headers=LATER)).json
    (tmp_path / "wal").rename(tmp_path / "elsewhere")
    (tmp_path / "wal").write_text("not a folder")
    for _ in range(claims.MAX_CRASHES):
        assert (await poll(gateway, ticket["id"])).status == 202
        await work_again(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.status, done.error["code"]) == (500, "deferred_failed")


async def test_a_deferred_request_waits_for_a_replica_as_any_other(gateway: Gateway) -> None:
    await in_database(tenants.stop_replicas)
    ticket = (await gateway.ask(headers=LATER)).json
    working = asyncio.ensure_future(work(ticket["id"]))
    await until(lambda: tasks.background._runtime)
    runtime = tasks.background._runtime
    assert runtime is not None
    rooms = runtime.pipeline._components.replica_queue.bounds._usage
    await until(lambda: rooms)
    await in_database(lambda: tenants.place(gateway.world, [engine.port for engine in gateway.engines]))
    await working
    assert (await poll(gateway, ticket["id"])).json == answer()


async def test_answer_and_charge_are_stored_together_and_the_log_adds_nothing(gateway: Gateway) -> None:
    ticket = (await gateway.ask(headers=LATER)).json
    await work(ticket["id"])
    assert await in_database(charges) == [(ticket["id"], 3)]
    await until(gateway.ends)
    assert await in_database(lambda: drained(gateway)) == [(ticket["id"], 3)]


async def test_a_worker_that_dies_is_replaced_under_the_same_id_and_only_the_answer_is_charged(
    gateway: Gateway,
) -> None:
    gateway.let_all_say(silence)
    ticket = (await gateway.ask(headers=LATER)).json
    stale = asyncio.ensure_future(work(ticket["id"]))
    await until(gateway.starts)
    assert await in_database(lambda: take_from_worker(ticket["id"])) == 1
    await stale  # its lease is lost, so that it stops
    await until(lambda: any(isinstance(record, Withdrawn) for record in gateway.records()))
    gateway.let_all_say(saying(answer()))
    await work(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.json, done.answer_headers["x-request-id"]) == (answer(), ticket["id"])
    await until(gateway.ends)
    assert [str(start.request_id) for start in gateway.starts()] == [ticket["id"]] * 2
    assert await in_database(lambda: drained(gateway)) == [(ticket["id"], 3)]


async def test_an_attempt_whose_process_died_is_a_retry_and_no_usage_of_its_tenant(gateway: Gateway) -> None:
    gateway.let_all_say(silence)
    ticket = (await gateway.ask(headers=LATER)).json
    lost = asyncio.ensure_future(work(ticket["id"]))
    await until(gateway.starts)
    await in_database(lambda: take_from_worker(ticket["id"]))
    await lost
    await asyncio.to_thread(tasks.background.close)
    assert await in_database(lambda: drained(gateway)) == []
    assert await in_database(retries) == 1


async def test_a_failure_that_may_pass_is_tried_again_and_answered(gateway: Gateway) -> None:
    gateway.let_all_say(saying({}, status=404))
    ticket = (await gateway.ask(headers=LATER)).json
    await work(ticket["id"])
    assert (await poll(gateway, ticket["id"])).status == 202
    gateway.let_all_say(saying(answer()))
    await work_again(ticket["id"])
    assert (await poll(gateway, ticket["id"])).json == answer()


async def test_a_request_that_engines_fail_on_is_not_tried_for_a_day(gateway: Gateway) -> None:
    gateway.let_all_say(saying({}, status=404))
    ticket = (await gateway.ask(headers=LATER)).json
    for _ in range(claims.MAX_CRASHES):
        assert (await poll(gateway, ticket["id"])).status == 202
        await work_again(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.status, done.error["code"]) == (502, "engine_failed")


async def test_do_not_store_is_obeyed_by_a_deferred_request(gateway: Gateway) -> None:
    for headers, reason in [({"x-prediction-cache": "off"}, "header"), ({"cache-control": "no-store"}, "no-store")]:
        ticket = (await gateway.ask(headers={**LATER, **headers})).json
        await work(ticket["id"])
        done = await poll(gateway, ticket["id"])
        assert (done.answer_headers["x-cache"], done.answer_headers["x-cache-reason"]) == ("bypass", reason)
    assert (await gateway.ask()).answer_headers["x-cache"] == "miss"


async def test_only_what_is_stored_is_wanted_by_a_deferred_request_too(gateway: Gateway) -> None:
    ticket = (await gateway.ask(headers={**LATER, "cache-control": "only-if-cached"})).json
    await work(ticket["id"])
    done = await poll(gateway, ticket["id"])
    assert (done.status, done.error["code"]) == (504, "not_cached")
    assert gateway.bodies() == []


async def test_an_unknown_cache_switch_is_refused_when_the_request_is_sent(gateway: Gateway) -> None:
    refused = await gateway.ask(headers={**LATER, "x-prediction-cache": "of"})
    assert (refused.status, refused.error["param"]) == (400, "x-prediction-cache")
    assert not await in_database(DeferredRequest.objects.exists)


async def test_a_full_queue_is_refused_and_a_stranger_has_its_own(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_UNFINISHED", 1)
    assert (await gateway.ask(headers=LATER)).status == 202
    refused = await gateway.ask(headers=LATER)
    assert (refused.status, refused.error["code"]) == (429, "too_many_deferred")
    assert refused.answer_headers["retry-after"] == "10"
    assert (await gateway.ask(key=gateway.world.globex.secret, headers=LATER)).status == 202


async def test_requests_that_wait_to_be_stored_do_not_delay_a_stranger(gateway: Gateway) -> None:
    async with stalled("SELECT 1 FROM tenants_tenant WHERE slug = 'acme' FOR UPDATE"):
        waiting = [asyncio.ensure_future(gateway.ask(headers=LATER)) for _ in range(2 * async_requests.THREADS)]
        await asyncio.wait(waiting, timeout=0.2)
        assert not any(each.done() for each in waiting)
        assert (await gateway.ask(key=gateway.world.globex.secret, headers=LATER)).status == 202
        assert not any(each.done() for each in waiting)
    assert {(await each).status for each in waiting} == {202}
    assert not async_requests._shares


async def test_what_a_hard_budget_cannot_hold_is_refused_when_it_is_sent(gateway: Gateway) -> None:
    books = await budgeted(gateway, 2 * held_pico(body()))
    await books.keep()
    accepted = await gateway.ask(body(), headers=LATER)
    assert accepted.status == 202
    refused = await gateway.ask(body(max_tokens=10 * MOST_NEW_TOKENS), headers=LATER)
    assert (refused.status, refused.error["code"]) == (429, "budget_exceeded")
    await until(lambda: not books.holds())
    assert books.left() == 2 * held_pico(body()), "a request that waits holds nothing"
    assert await in_database(DeferredRequest.objects.count) == 1


async def test_a_503_means_that_nothing_was_accepted_also_once_the_database_goes_on(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_requests, "TIMEOUT_SECONDS", 0.5)
    async with stalled("LOCK TABLE workers_deferredrequest IN ACCESS EXCLUSIVE MODE"):
        refused = [await gateway.ask(headers={**LATER, "idempotency-key": f"order {n}"}) for n in range(2)]
    assert {(each.status, each.error["code"]) for each in refused} == {(503, "database_unavailable")}
    await asyncio.to_thread(threads_are_idle)
    assert not await in_database(DeferredRequest.objects.exists)
    accepted = await gateway.ask(headers={**LATER, "idempotency-key": "order 1"})
    assert accepted.status == 202
    assert await in_database(DeferredRequest.objects.count) == 1


@pytest.mark.parametrize("dies", [False, True])
async def test_a_commit_without_a_reply_is_waited_for(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, slow_commits: None, dies: bool
) -> None:
    monkeypatch.setattr(async_requests, "TIMEOUT_SECONDS", 0.5)
    async with stalled(f"SELECT pg_advisory_lock({COMMITS})"):
        asked = asyncio.ensure_future(gateway.ask(headers=LATER))
        waiting = await in_database(in_commit)
        await asyncio.wait({asked}, timeout=1)
        assert not asked.done(), "neither 202 nor 503 would be certain"
        if dies:
            await in_database(lambda: terminate(waiting))
    answered = await asked
    assert answered.status == (503 if dies else 202)
    assert await in_database(DeferredRequest.objects.count) == (0 if dies else 1)


async def test_an_answer_is_stored_and_charged_once_however_often_the_database_goes_away(gateway: Gateway) -> None:
    go_on = asyncio.Event()
    gateway.let_all_say(after(go_on))
    ticket = (await gateway.ask(headers=LATER)).json
    own: list[int] = []

    def run() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            own.extend(cursor.fetchone())
        tasks.run_deferred(ticket["id"])

    working = asyncio.ensure_future(in_database(run))
    await until(gateway.starts)
    await in_database(lambda: terminate(own))
    go_on.set()
    await working
    assert (await poll(gateway, ticket["id"])).status == 200
    assert await in_database(lambda: drained(gateway)) == [(ticket["id"], 3)]
    assert len(gateway.bodies()) == 1


async def test_a_request_whose_message_is_lost_is_found(gateway: Gateway) -> None:
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        tickets = [(await gateway.ask(headers=LATER)).json["id"] for _ in range(3)]
        await asyncio.to_thread(async_requests._broker.submit(int).result)
        await redis.delete(QUEUE)
        await in_database(tasks.tend_deferred)
        assert await redis.llen(QUEUE) == 3
        await in_database(tasks.tend_deferred)
        assert await redis.llen(QUEUE) == 3, "one message for each request that waits"
    for ticket in tickets:
        await work("")
        assert (await poll(gateway, ticket)).status == 200


async def test_a_broker_that_stands_still_delays_no_acceptance(gateway: Gateway) -> None:
    released = threading.Event()
    blocked = async_requests._broker.submit(released.wait)
    try:
        assert (await gateway.ask(headers=LATER)).status == 202
        assert not blocked.done()
    finally:
        released.set()


async def test_one_key_is_accepted_once_although_redis_forgot_it(gateway: Gateway) -> None:
    headers = {**LATER, "idempotency-key": "order 1"}
    first = await gateway.ask(headers=headers)
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        await redis.flushdb()
    again = await gateway.ask(headers=headers)
    assert (again.status, again.json) == (202, first.json)
    assert again.answer_headers["location"] == first.answer_headers["location"]
    assert again.answer_headers["x-request-id"] == first.answer_headers["x-request-id"]
    assert again.answer_headers["idempotent-replayed"] == "true"
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        await redis.flushdb()
    other = await gateway.ask({**HELLO, "seed": 1}, headers=headers)
    assert (other.status, other.error["code"]) == (422, "idempotency_key_reused")
    assert (await gateway.ask(key=gateway.world.globex.secret, headers=headers)).json != first.json


@pytest.fixture
def slow_commits(committed: None) -> Iterator[None]:
    """Let commits of deferred requests wait for the lock COMMITS."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM pg_advisory_xact_lock_shared({COMMITS}); RETURN NULL; END';
            CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON workers_deferredrequest
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow_commit();
            """
        )
    connection.close()
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER slow_commit ON workers_deferredrequest; DROP FUNCTION slow_commit()")
    connection.close()


@asynccontextmanager
async def stalled(statement: str) -> AsyncIterator[None]:
    """Hold the lock that the statement takes during the block."""
    begun, released = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
            begun.set()
            released.wait(60)

    holding = asyncio.ensure_future(in_database(hold))
    try:
        await until(begun.is_set)
        yield
    finally:
        released.set()
        await holding


def threads_are_idle() -> None:
    """Wait until all that was begun in the threads of acceptances has ended."""
    barrier = threading.Barrier(async_requests.THREADS + 1)
    for _ in range(async_requests.THREADS):
        async_requests._database.submit(barrier.wait)
    barrier.wait(60)


def in_commit() -> list[int]:
    """Return the process ids of the database's connections that wait for COMMITS, once there is one."""
    waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
    found: list[int] = []
    with connection.cursor() as cursor:
        while not found:
            cursor.execute(waiting, [COMMITS])
            found = [pid for (pid,) in cursor.fetchall()]
    return found


def terminate(pids: list[int]) -> None:
    """End connections to the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [pids])


def take_from_worker(request_id: str) -> int:
    """Let the lease of a running request end, and the time to renew it."""
    rows = DeferredRequest.objects.filter(id=request_id)
    rows.update(takeover_at=timezone.now())
    return claims.take_over()


def drained(gateway: Gateway) -> list[tuple[str, int]]:
    """Store the usage log, and return what :func:`charges` returns."""
    drain = Drain(gateway.wal, "here")
    try:
        while drain.step():
            pass
    finally:
        drain.close()
    return charges()


def _limits(gateway: Gateway) -> tuple[LimitLine, ...]:
    return gateway.runtime.feed.snapshot.callers.caller(gateway.world.acme.key.public_id).limits
