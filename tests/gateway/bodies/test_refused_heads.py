"""Requests that are refused by their head: nothing of their body is read, and nobody else's request suffers."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from billing.wal.records import Start
from gateway.bodies.memory import BodyMemory
from tenants.policy.limits import LimitValues, set_limit
from tenants.policy.policy_target import PolicyTarget
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import silence
from tests.gateway.fixtures.tenants import HELLO, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

LARGE_BYTES = 1 << 20
LARGE = orjson.dumps({**HELLO, "messages": [{"role": "user", "content": "x" * (LARGE_BYTES - 200)}]})


def large(gateway: Gateway, **how: Any) -> Exchange:
    """Return a request with a large body that arrives in pieces after its head."""
    pieces = [LARGE[at : at + 65536] for at in range(0, len(LARGE), 65536)]
    headers = {"content-length": str(len(LARGE)), **how.pop("headers", {})}
    return gateway.exchange(headers=headers, **{"pieces": pieces, **how})


def unsent(gateway: Gateway, size_bytes: int = LARGE_BYTES, **how: Any) -> Exchange:
    """Return a request that announces a body and never sends it."""
    return gateway.exchange(headers={"content-length": str(size_bytes)}, pieces=(), **how)


def account(gateway: Gateway) -> BodyMemory:
    return gateway.runtime.components.body_memory


async def limit(gateway: Gateway, requests_per_minute: int) -> None:
    """Limit acme's requests, and wait until the gateway has read it."""
    target, values = (
        PolicyTarget(tenant=gateway.world.acme.tenant),
        LimitValues(requests_per_minute=requests_per_minute),
    )
    await in_database(lambda: set_limit(OPERATOR, target, values))
    await until(lambda: gateway.caller().limits)


@pytest.mark.parametrize("headers", [{}, {"expect": "100-continue"}], ids=["sent", "expecting"])
async def test_a_large_body_under_a_limit_of_zero_is_not_read(gateway: Gateway, headers: dict[str, str]) -> None:
    await limit(gateway, 0)
    asked = await large(gateway, headers=headers).run()
    assert (asked.read, asked.status, asked.error["code"]) == (0, 429, "rate_limit_exceeded")
    assert (asked.answer_headers["retry-after"], asked.answer_headers["connection"]) == ("60", "close")
    assert [(end.http_status, end.error_code) for end in gateway.refusals()] == [(429, "rate_limit_exceeded")]
    assert account(gateway).used_bytes == 0
    other = await large(gateway, key=gateway.world.globex.secret).run()
    assert other.status == 200


async def test_a_large_body_is_not_read_while_its_limit_is_used_up(gateway: Gateway) -> None:
    await limit(gateway, 1)
    first, second, third = [await large(gateway).run() for _ in range(3)]
    assert [each.status for each in (first, second, third)] == [200, 429, 429]
    assert second.read == len(second.pieces), "the limit was not known to be used up"
    assert third.read == 0
    assert third.error == second.error
    assert third.answer_headers["x-ratelimit-remaining-requests"] == "0"


async def test_a_look_at_the_limit_takes_nothing_from_it(gateway: Gateway) -> None:
    await limit(gateway, 2)
    assert [(await large(gateway).run()).status for _ in range(3)] == [200, 200, 429]


async def test_a_small_request_is_parsed_before_its_limits_are_looked_at(gateway: Gateway) -> None:
    await limit(gateway, 0)
    body = orjson.dumps(HELLO)
    assert (await gateway.ask(body, headers={"content-length": str(len(body))})).status == 429
    assert [record.model_name for record in gateway.records() if isinstance(record, Start)] == ["demo"]


async def test_bodies_count_for_their_tenant_from_the_head_to_the_response(gateway: Gateway) -> None:
    gateway.let_all_say(silence)
    work = asyncio.create_task((asked := large(gateway)).run())
    await until(gateway.bodies)
    assert account(gateway).used_by(gateway.caller().tenant_id) == len(LARGE)
    asked.disconnect.set()
    await work
    assert account(gateway).used_bytes == 0


async def test_a_tenant_that_announces_more_than_its_share_is_refused_and_others_are_served(gateway: Gateway) -> None:
    account(gateway).process_bytes = 8 * LARGE_BYTES
    await gateway.set_policy(queue_bytes=0)
    slow = [unsent(gateway) for _ in range(2)]
    tasks = [asyncio.create_task(each.run()) for each in slow]
    await until(lambda: account(gateway).used_bytes == 2 * LARGE_BYTES)
    asked = await large(gateway).run()
    assert (asked.read, asked.status, asked.error["code"]) == (0, 429, "too_many_body_bytes")
    assert asked.answer_headers["retry-after"] == "1"
    small, other = await gateway.ask(headers={"content-length": "60"}), gateway.world.globex.secret
    assert (small.status, (await large(gateway, key=other).run()).status) == (429, 200)
    for each in slow:
        each.disconnect.set()
    await asyncio.gather(*tasks)
    assert (await large(gateway).run()).status == 200
    assert account(gateway).used_bytes == 0


async def test_a_body_of_unknown_length_counts_as_it_arrives(gateway: Gateway) -> None:
    account(gateway).process_bytes = 2 * LARGE_BYTES
    await gateway.set_policy(queue_bytes=0)
    asked = await gateway.exchange(pieces=large(gateway).pieces).run()
    assert (asked.status, asked.error["code"]) == (429, "too_many_body_bytes")
    assert asked.read == LARGE_BYTES // 2 // 65536 + 1
    assert account(gateway).used_bytes == 0


async def test_a_full_process_refuses_everybody_with_503(gateway: Gateway) -> None:
    account(gateway).process_bytes = LARGE_BYTES // 2
    asked = await large(gateway).run()
    assert (asked.read, asked.status, asked.error["code"]) == (0, 503, "gateway_busy")


async def test_errors_before_the_body_have_the_format_of_the_path(gateway: Gateway) -> None:
    await limit(gateway, 0)
    asked = await large(gateway, path="/v1/messages").run()
    assert asked.json["type"] == "error"
    assert asked.json["error"]["type"] == "rate_limit_error"
    assert asked.answer_headers["request-id"] == asked.answer_headers["x-request-id"]


async def test_a_path_without_a_body_is_answered_without_reading_one(gateway: Gateway) -> None:
    asked = await unsent(gateway, method="GET", path="/v1/models").run()
    assert (asked.status, asked.json["data"][0]["id"]) == (200, "demo")
    assert asked.answer_headers["connection"] == "close"


async def test_a_large_body_reaches_the_engine_whole_and_its_response_is_stored(gateway: Gateway) -> None:
    first, second = [await large(gateway).run() for _ in range(2)]
    assert (first.status, second.status) == (200, 200)
    assert (first.answer_headers["x-cache"], second.answer_headers["x-cache"]) == ("miss", "hit")
    (body,) = gateway.bodies()
    assert (body["model"], body["messages"]) == ("demo", orjson.loads(LARGE)["messages"])


async def test_a_large_body_for_a_model_that_does_not_exist_is_refused(gateway: Gateway) -> None:
    unknown = orjson.dumps({**orjson.loads(LARGE), "model": "nothing"})
    asked = await gateway.ask(unknown)
    assert (asked.status, asked.error["code"]) == (404, "model_not_found")
    assert gateway.bodies() == []
