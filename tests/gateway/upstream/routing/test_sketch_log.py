"""The advisor works on what a gateway keeps of real requests: hashes, a bounded number, each tenant's apart."""

from __future__ import annotations

from typing import Any, cast

import pytest
from django.conf import LazySettings
from redis.asyncio import Redis

from billing.drain import batch
from billing.ledger.usage_rows import finished
from portal.reporting.advice import advisor
from portal.reporting.advice.advisor import Report
from routing.prefixes import prompt_sketch
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.isolation import keyspace
from tests.gateway.fixtures.scripted_app import answer, saying
from tests.gateway.fixtures.tenants import MODEL, Gateway, in_database, raw_door

pytestmark = [pytest.mark.parametrize("gateway", [raw_door], indirect=True), pytest.mark.usefixtures("emptied")]

RULES = "Answer in plain words, and never promise a refund. " * 60
USAGE = {"prompt_tokens": 800, "completion_tokens": 3, "total_tokens": 803}


async def talk(gateway: Gateway, prompts: list[str], **fields: Any) -> None:
    """Send a request with each of these system prompts."""
    gateway.let_all_say(saying(answer(usage=USAGE)))
    for number, text in enumerate(prompts):
        said = [{"role": "system", "content": text}, {"role": "user", "content": f"Question {number}?"}]
        await gateway.ask({"model": MODEL, "messages": said, **fields})
    gateway.runtime.components.sketches.send()


async def advice(gateway: Gateway) -> Report:
    """Store what was used as the drain does, and return acme's advice."""

    def read() -> Report:
        ends = {each.request_id: each for each in gateway.ends()}
        batch.store([finished(each, ends[each.request_id]) for each in gateway.starts()], {}, node="n1")
        with as_tenant(TenantId(gateway.world.acme.tenant.id)):
            return advisor.read(gateway.world.acme.tenant)

    return await in_database(read)


async def test_the_time_at_the_top_of_a_prompt_is_found(gateway: Gateway) -> None:
    await talk(gateway, [f"It is 14:03:{second}. {RULES}" for second in range(24)])
    report = await advice(gateway)
    (found,) = report.advice
    assert (found.kind, found.reason, found.requests, found.shared_tokens) == ("prefix", "message 1", 23, 0)
    assert found.behind_tokens is not None
    assert found.behind_tokens > 600
    assert "first message (system)" in found.title


async def test_the_time_at_the_end_breaks_nothing(gateway: Gateway) -> None:
    await talk(gateway, [f"{RULES} It is 14:03:{second}." for second in range(24)])
    report = await advice(gateway)
    assert (report.requests, report.advice) == (24, ())


async def test_what_is_kept_has_no_text_and_is_the_tenants_own(gateway: Gateway, settings: LazySettings) -> None:
    await talk(gateway, [RULES] * 2)
    await gateway.ask(
        {"model": MODEL, "messages": [{"role": "user", "content": RULES}]}, key=gateway.world.globex.secret
    )
    gateway.runtime.components.sketches.send()
    async with Redis.from_url(settings.REDIS_CACHE_URL) as redis:
        kept: dict[str, list[bytes]] = {}
        for customer in (gateway.world.acme, gateway.world.globex):
            key = keyspace.tenant_key(TenantId(customer.tenant.id), prompt_sketch.ROOM)
            kept[customer.tenant.slug] = cast("list[bytes]", await redis.zrange(key, 0, -1))
            assert 0 < await redis.ttl(key) <= prompt_sketch.KEPT_SECONDS
    assert [len(items) for items in kept.values()] == [2, 1]
    assert not any(b"refund" in item for items in kept.values() for item in items)
    acme, globex = (
        {
            part
            for each in prompt_sketch.decode(items)
            for message in each.messages
            for _, part in message.tails_by_length()
        }
        for items in kept.values()
    )
    assert not acme & globex
