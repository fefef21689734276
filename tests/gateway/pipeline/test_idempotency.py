"""A request repeated with its Idempotency-Key runs once and receives the same response each time."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from redis.asyncio import Redis

from gateway import tasks
from gateway.pipeline.idempotency import HOUR_SECONDS, KEEP_SECONDS
from gateway.pipeline.idempotency_record import MAX_RESPONSE_BYTES
from tenants.isolation import keyspace
from tenants.keys import keys
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.idempotency_process import COMMAND
from tests.gateway.fixtures.private_redis import PrivateRedis
from tests.gateway.fixtures.scripted_app import (
    CHUNKS,
    after,
    answer,
    delta,
    events,
    hang_up,
    saying,
    silence,
    streaming,
)
from tests.gateway.fixtures.tenants import DOORS, HELLO, STREAMED, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

ROOT = Path(__file__).parents[3]
CHAT = "/v1/chat/completions"
#: Not answered by the prediction cache, so that a repeated answer comes from the stored response.
ASKED = {**HELLO, "temperature": 1}
TWICE = {**STREAMED, "temperature": 1}


async def ask(gateway: Gateway, body: Any = None, text: str = "order 1", **how: Any) -> Exchange:
    """Send a request under an Idempotency-Key."""
    headers = {"idempotency-key": text, **how.pop("headers", {})}
    return await gateway.ask(ASKED if body is None else body, headers=headers, **how)


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_the_second_answer_is_the_first_and_costs_nothing(gateway: Gateway) -> None:
    first = await ask(gateway)
    gateway.let_all_say(saying(answer("Something else")))
    second = await ask(gateway, headers={"x-request-id": "mine"})
    assert (second.status, second.json) == (first.status, first.json) == (200, answer())
    assert second.answer_headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.answer_headers
    assert second.answer_headers["x-request-id"] == first.answer_headers["x-request-id"]
    assert second.answer_headers["x-client-request-id"] == "mine"
    assert second.answer_headers["content-type"] == "application/json"
    assert (len(gateway.bodies()), len(gateway.starts()), len(gateway.ends())) == (1, 1, 1)
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        (name,) = [key async for key in redis.scan_iter("hearth:*:idempotency:*")]
        assert 0 < await redis.ttl(name) <= KEEP_SECONDS


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_a_stream_is_told_again_as_a_stream(gateway: Gateway) -> None:
    first = await ask(gateway, TWICE)
    gateway.let_all_say(hang_up)
    second = await ask(gateway, TWICE)
    assert (second.status, second.body) == (200, first.body)
    assert first.events[-1] == b"data: [DONE]"
    assert second.answer_headers["content-type"] == first.answer_headers["content-type"]
    assert second.answer_headers["idempotent-replayed"] == "true"
    assert [end.state for end in gateway.ends()] == ["complete"]


async def test_of_fifty_at_once_one_runs(gateway: Gateway) -> None:
    go_on = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await go_on.wait()
        return web.json_response(answer())

    gateway.let_all_say(slow)
    asked = [asyncio.create_task(ask(gateway)) for _ in range(50)]
    await until(lambda: sum(task.done() for task in asked) == 49)
    refused = [task.result() for task in asked if task.done()]
    assert {(each.status, each.error["code"]) for each in refused} == {(409, "idempotency_in_progress")}
    assert {each.answer_headers["retry-after"] for each in refused} == {"1"}
    go_on.set()
    answered = (await asyncio.gather(*asked)) + [await ask(gateway) for _ in range(3)]
    assert sum(each.status == 200 for each in answered) == 4
    assert (len(gateway.bodies()), len(gateway.ends())) == (1, 1)


async def test_a_tenant_stores_no_more_in_an_hour_than_it_may_and_a_stranger_stores_its_own(gateway: Gateway) -> None:
    await gateway.set_policy(idempotency_bytes_per_hour=5000)
    gateway.let_all_say(world_hello)
    told = [await ask(gateway, text=f"order {number}") for number in range(20)]
    ran = sum(each.status == 200 for each in told)
    assert 2 < ran < 20
    assert [each.status for each in told] == [200] * ran + [429] * (20 - ran)
    assert told[-1].error["code"] == "idempotency_quota_exceeded"
    assert 0 < int(told[-1].answer_headers["retry-after"]) <= 3600
    again = [await ask(gateway, text=f"order {number}") for number in range(ran)]
    kept = [each.status for each in again].count(200)
    # The last ones did not fit what was left of the hour.
    assert [each.status for each in again] == [200] * kept + [409] * (ran - kept)
    assert 0 < ran - kept < kept
    assert again[-1].error["code"] == "idempotency_answer_not_kept"
    for _ in range(2):
        assert (await ask(gateway, key=gateway.world.globex.secret)).status == 200
    assert (await gateway.ask(ASKED)).status == 200
    assert len(gateway.bodies()) == ran + 2


async def test_what_a_tenant_stored_in_24_hours_is_bounded_and_goes_with_them(gateway: Gateway) -> None:
    hour = int(time.time()) // HOUR_SECONDS
    await gateway.set_policy(idempotency_bytes_per_hour=5000)
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        counted = keyspace.redis_key(gateway.caller(), "idempotency-bytes")
        for ago in (3, 9, 15, 21):
            await redis.set(f"{counted}{hour - ago}", 5000)
        refused = await ask(gateway)
        assert (refused.status, refused.error["code"]) == (429, "idempotency_quota_exceeded")
        await redis.delete(f"{counted}{hour - 21}")
        assert (await ask(gateway)).status == 200
        lives = [await redis.ttl(name) async for name in redis.scan_iter("hearth:*:idempotency*")]
        stored = [seconds for seconds in lives if seconds != -1]  # without what this test has set
        assert len(stored) == 2
        assert all(0 < seconds <= KEEP_SECONDS for seconds in stored)


async def test_another_request_under_the_same_key_is_refused_before_and_after_the_answer(gateway: Gateway) -> None:
    gateway.let_all_say(silence)
    exchange = gateway.exchange(ASKED, headers={"idempotency-key": "order 1"})
    running = asyncio.create_task(exchange.run())
    await until(gateway.starts)
    other = {**ASKED, "seed": 1}
    early = await ask(gateway, other)
    exchange.disconnect.set()
    await running
    gateway.let_all_say(saying(answer()))
    await ask_until_it_runs(gateway)
    late = await ask(gateway, other)
    later = await ask(gateway, headers={"prefer": "respond-async"})
    assert {(each.status, each.error["code"]) for each in (early, late, later)} == {(422, "idempotency_key_reused")}


async def ask_until_it_runs(gateway: Gateway, body: Any = None) -> Exchange:
    """Ask until the key is free again and Redis is there."""
    for _ in range(600):
        asked = await ask(gateway, body)
        if asked.status not in {409, 503}:
            break
        await asyncio.sleep(0.1)
    assert asked.status == 200
    return asked


async def test_a_stranger_s_key_and_another_endpoint_s_are_other_keys(gateway: Gateway) -> None:
    second = await in_database(lambda: keys.issue(OPERATOR, gateway.world.acme.project, name="second"))
    prompt = {"model": tenants.MODEL, "prompt": "Hello", "temperature": 1}
    asked = [
        await ask(gateway),
        await ask(gateway, key=gateway.world.globex.secret),
        await ask(gateway, key=second.secret),
        await ask(gateway, prompt, path="/v1/completions"),
        await ask(gateway, text="order 2"),
    ]
    assert [each.status for each in asked] == [200] * 5
    assert not any("idempotent-replayed" in each.answer_headers for each in asked)
    assert len(gateway.ends()) == 5


async def test_what_is_kept_names_neither_the_key_nor_the_request_and_cannot_be_forged(gateway: Gateway) -> None:
    await ask(gateway, text="order of Mrs Smith")
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        (name,) = [key async for key in redis.scan_iter("hearth:*:idempotency:*")]
        value = await redis.get(name)
        assert isinstance(value, bytes)
        assert b"Smith" not in name + value
        await redis.set(name, value[:-1] + bytes([value[-1] ^ 1]))
    forged = await ask(gateway, text="order of Mrs Smith")
    assert (forged.status, forged.error["code"]) == (503, "idempotency_unavailable")
    assert len(gateway.bodies()) == 1


@pytest.mark.parametrize(
    ("body", "say", "status"),
    [
        (ASKED, saying({}, 404), 502),
        (ASKED, saying({"error": {"message": "no"}}, 400), 400),
        (TWICE, streaming(events(CHUNKS[:2], done=False), cut=True), 200),
    ],
)
async def test_a_request_that_fails_frees_its_key(gateway: Gateway, body: Any, say: Any, status: int) -> None:
    gateway.let_all_say(say)
    failed = await ask(gateway, body)
    assert failed.status == status
    gateway.let_all_say(world_hello)
    served = await ask_until_it_runs(gateway, body)
    assert "idempotent-replayed" not in served.answer_headers
    again = await ask(gateway, body)
    assert (again.answer_headers["idempotent-replayed"], again.body) == ("true", served.body)


async def world_hello(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Say hello, streamed or not."""
    return await (streaming(events())(request, body) if body.get("stream") else saying(answer())(request, body))


@pytest.mark.parametrize("body", [ASKED, TWICE])
async def test_a_client_that_leaves_before_its_answer_frees_the_key(gateway: Gateway, body: Any) -> None:
    gateway.let_all_say(silence if body is ASKED else streaming(events(CHUNKS[:2], done=False), then_wait=True))
    exchange = gateway.exchange(body, headers={"idempotency-key": "order 1"})
    task = asyncio.create_task(exchange.run())
    await until(gateway.starts if body is ASKED else lambda: exchange.body)
    exchange.disconnect.set()
    await task
    gateway.let_all_say(world_hello)
    await ask_until_it_runs(gateway, body)


@pytest.mark.parametrize("body", [ASKED, TWICE])
async def test_an_answer_above_the_limit_is_not_kept_and_the_request_not_run_again(gateway: Gateway, body: Any) -> None:
    text = "x" * MAX_RESPONSE_BYTES
    large = saying(answer(text)) if body is ASKED else streaming(events([CHUNKS[0], delta(text), *CHUNKS[3:]]))
    gateway.let_all_say(large)
    first = await ask(gateway, body)
    assert (first.status, len(first.body) > MAX_RESPONSE_BYTES) == (200, True)
    second = await ask(gateway, body)
    assert (second.status, second.error["code"]) == (409, "idempotency_answer_not_kept")
    assert "retry-after" not in second.answer_headers
    assert len(gateway.bodies()) == 1


@pytest.mark.parametrize("text", ["", "x" * 256, "tab\there", "caf\u00e9"])
async def test_a_key_that_is_none_is_said_so(gateway: Gateway, text: str) -> None:
    refused = await ask(gateway, text=text)
    assert (refused.status, refused.error["param"]) == (400, "idempotency-key")
    assert gateway.bodies() == []


async def test_a_deferred_request_is_accepted_once(gateway: Gateway) -> None:
    first = await ask(gateway, headers={"prefer": "respond-async"})
    second = await ask(gateway, headers={"prefer": "respond-async"})
    try:
        assert (first.status, second.status, second.json) == (202, 202, first.json)
        assert second.answer_headers["location"] == first.answer_headers["location"]
        assert second.answer_headers["idempotent-replayed"] == "true"
    finally:
        await asyncio.to_thread(tasks.background.close)


async def test_without_redis_nothing_runs_that_shall_run_once(
    paused_at_will: tuple[Gateway, PrivateRedis],
) -> None:
    gateway, redis = paused_at_will
    assert (await ask(gateway)).status == 200
    redis.pause()
    refused = await ask(gateway, text="order 2")
    assert (refused.status, refused.error["code"]) == (503, "idempotency_unavailable")
    assert refused.answer_headers["retry-after"] == "1"
    assert len(gateway.bodies()) == 1
    redis.resume()
    again = await ask_until_it_runs(gateway)
    assert again.answer_headers["idempotent-replayed"] == "true"


async def test_an_answer_that_redis_does_not_take_is_given_all_the_same_and_kept_once_it_is_back(
    paused_at_will: tuple[Gateway, PrivateRedis],
) -> None:
    gateway, redis = paused_at_will

    async def pause(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        redis.pause()
        return await world_hello(request, body)

    gateway.let_all_say(pause)
    first = await ask(gateway)
    assert (first.status, first.json) == (200, answer())
    redis.resume()
    again = await ask_until_it_runs(gateway)
    assert (again.answer_headers["idempotent-replayed"], len(gateway.bodies())) == ("true", 1)


@pytest.mark.parametrize("loss", ["stall", "flush"])
async def test_a_key_whose_claim_redis_lost_runs_once(paused_at_will: tuple[Gateway, PrivateRedis], loss: str) -> None:
    gateway, redis = paused_at_will
    gateway.runtime.components.idempotency.claim_seconds = 0.5
    go_on = asyncio.Event()
    gateway.let_all_say(after(go_on))
    first = asyncio.ensure_future(ask(gateway))
    await until(gateway.starts)
    if loss == "stall":
        redis.pause()
        await asyncio.sleep(1)  # the claim expires
        redis.resume()
    else:
        await redis.client.flushdb()
    refused = await ask(gateway)
    while refused.status == 503:  # the gateway connects to Redis again
        refused = await ask(gateway)
    assert (refused.status, refused.error["code"]) == (409, "idempotency_in_progress")
    go_on.set()
    assert (await first).status == 200
    again = await ask_until_it_runs(gateway)
    assert (again.answer_headers["idempotent-replayed"], again.body) == ("true", (await first).body)
    assert (len(gateway.bodies()), len(gateway.ends())) == (1, 1)


async def test_the_key_of_a_killed_process_is_free_after_a_while(gateway: Gateway) -> None:
    body, acme = orjson.dumps(ASKED).decode(), gateway.world.acme
    what = [os.environ["REDIS_URL"], str(acme.tenant.id), str(acme.key.id), CHAT, "order 1", body, "1"]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "hearth.settings"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMMAND, *what, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"claimed\n"
        for _ in range(15):  # for longer than a claim lasts, which is renewed
            running = await ask(gateway, body.encode())
            assert (running.status, running.error["code"]) == (409, "idempotency_in_progress")
            await asyncio.sleep(0.1)
    finally:
        process.kill()
        await process.communicate()
    served = await ask_until_it_runs(gateway, body.encode())
    assert (served.json, "idempotent-replayed" in served.answer_headers) == (answer(), False)
