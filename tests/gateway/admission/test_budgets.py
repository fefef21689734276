"""Hard budgets through a whole gateway, a real drain and its keeper: what they admit, spend and give back."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from django.db.models import Sum
from redis import Redis

from billing.budgets.holds import COUNTED_ON, counter_prefix
from billing.models import UsageRecord
from billing.pricing.prices import DEMO_RATES
from billing.wal.records import End
from gateway.admission.cost_estimate import STEP_TOKENS
from tenants.ids import TenantId
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.budget import CHARGED_PICO, MOST_NEW_TOKENS, body, budgeted, held_pico
from tests.gateway.fixtures.scripted_app import USAGE, after, chunk, delta, events, stream, streaming
from tests.gateway.fixtures.tenants import HELLO, Gateway, in_database, until


@pytest.mark.usefixtures("emptied")
async def test_of_two_hundred_at_once_a_budget_admits_exactly_those_that_fit(gateway: Gateway) -> None:
    limit_pico = 37 * held_pico(body()) + CHARGED_PICO
    books = await budgeted(gateway, limit_pico)
    assert (await gateway.ask(body())).error["code"] == "budget_unknown", "nobody has counted yet"
    await books.keep()
    assert books.left() == limit_pico

    released = asyncio.Event()
    gateway.let_all_say(after(released))
    exchanges = [gateway.exchange(body(seed=100 + number)) for number in range(200)]
    sent = [asyncio.ensure_future(exchange.run()) for exchange in exchanges]
    await until(lambda: sum(one.done() for one in sent) == 163)
    assert books.left() == CHARGED_PICO
    await books.keep()
    assert books.left() == CHARGED_PICO, "what is held and runs is counted as held"
    released.set()
    answers: list[Exchange] = await asyncio.gather(*sent)

    refused = [answer for answer in answers if answer.status != 200]
    assert sum(answer.status == 200 for answer in answers) == 37
    assert {(answer.status, answer.error["code"]) for answer in refused} == {(429, "budget_exceeded")}
    await until(lambda: books.left() == limit_pico - 37 * CHARGED_PICO)
    assert all(value.startswith("=") for value in books.holds().values())
    await books.keep()
    charged = await in_database(lambda: UsageRecord.objects.aggregate(total=Sum("amount_pico"))["total"])
    assert charged == 37 * CHARGED_PICO <= limit_pico
    assert books.holds() == {}
    assert books.left() == limit_pico - charged


@pytest.mark.usefixtures("emptied")
async def test_of_two_hundred_priced_hits_at_once_a_budget_admits_exactly_those_that_fit(gateway: Gateway) -> None:
    hit_pico = 10**7
    limit_pico = CHARGED_PICO + 37 * hit_pico + hit_pico // 2
    books = await budgeted(gateway, limit_pico, rates=replace(DEMO_RATES, prediction_hit_pico=hit_pico))
    await books.keep()
    asked = {**HELLO, "max_tokens": MOST_NEW_TOKENS}
    assert (await gateway.ask(asked)).answer_headers["x-cache"] == "miss"
    await until(lambda: books.left() == limit_pico - CHARGED_PICO)
    answers = await asyncio.gather(*[gateway.ask(asked) for _ in range(200)])
    given = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status != 200]
    assert len(given) == 37
    assert {answer.answer_headers["x-cache"] for answer in given} == {"hit"}
    assert {(answer.status, answer.error["code"]) for answer in refused} == {(429, "budget_exceeded")}
    await until(lambda: books.left() == hit_pico // 2)
    await books.keep()
    charged = await in_database(lambda: UsageRecord.objects.aggregate(total=Sum("amount_pico"))["total"])
    assert charged == CHARGED_PICO + 37 * hit_pico <= limit_pico
    assert (books.holds(), books.left()) == ({}, limit_pico - charged)


@pytest.mark.usefixtures("emptied")
async def test_a_stream_pays_as_it_goes_and_ends_with_an_error_when_nothing_is_left(gateway: Gateway) -> None:
    asked = body(stream=True, max_tokens=2000)
    limit_pico = held_pico(asked, 2 * STEP_TOKENS) + 599_999
    books = await budgeted(gateway, limit_pico)
    await books.keep()
    tokens = events([delta(f"{number},") for number in range(1500)])
    gateway.let_all_say(lambda request, asked: stream(request, tokens, pause_seconds=0.0005))
    got = await gateway.ask(asked)
    assert got.status == 200
    told = [event for event in got.events if b'"content"' in event]
    assert 1.5 * STEP_TOKENS <= len(told) <= 2 * STEP_TOKENS
    assert b"budget_exceeded" in got.events[-1]
    assert got.events[-1].startswith(b"event: error")
    assert max(start.held_pico for start in gateway.starts()) == limit_pico - 599_999
    await books.keep()
    row = await in_database(UsageRecord.objects.get)
    assert row.completion_tokens == len(told)
    assert row.amount_pico is not None
    assert books.left() == limit_pico - row.amount_pico > 0
    assert books.holds() == {}


@pytest.mark.usefixtures("emptied")
async def test_a_stream_waits_while_its_budget_is_counted_again_and_then_goes_on(gateway: Gateway) -> None:
    """As after a failover of Redis: gateways take nothing from counters that were counted on another server."""
    books = await budgeted(gateway, 10**12)
    await books.keep()
    failed_over = asyncio.Event()
    said = events([delta(f"{number},") for number in range(700)])

    async def say(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"".join(said[:10]))
        await failed_over.wait()
        await response.write(b"".join(said[10:]))
        await response.write_eof()
        return response

    gateway.let_all_say(say)
    exchange = gateway.exchange(body(stream=True, max_tokens=700))
    sent = asyncio.ensure_future(exchange.run())
    await until(lambda: exchange.body.count(b'"content"') == 10)
    with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        redis.set(counter_prefix(TenantId(books.budget.tenant_id)) + COUNTED_ON, "the former primary")

        def scripts() -> int:
            return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])

        before = scripts()
        failed_over.set()
        await until(lambda: sent.done() or scripts() >= before + 4)
    assert not sent.done(), exchange.body[-300:]
    assert exchange.body.count(b'"content"') <= STEP_TOKENS, "no token is sent that no budget covers"
    await books.keep()
    await sent
    assert (exchange.body.count(b'"content"'), exchange.events[-1]) == (700, b"data: [DONE]")
    await books.keep()
    row = await in_database(UsageRecord.objects.get)
    assert row.amount_pico is not None
    assert (books.holds(), books.left()) == ({}, 10**12 - row.amount_pico)


def counted(written: int) -> dict[str, Any]:
    """Return a chunk as vLLM sends it with ``continuous_usage_stats``, after this many tokens."""
    usage = {"prompt_tokens": 12, "total_tokens": 12 + written, "completion_tokens": written}
    return {**delta(f"{written},"), "usage": {**usage, "completion_tokens_details": None}}


@pytest.mark.usefixtures("emptied")
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_stream_whose_events_carry_many_tokens_never_passes_what_is_paid_for(
    gateway: Gateway, at_once: bool
) -> None:
    asked = body(stream=True, max_tokens=2000)
    limit_pico = held_pico(asked, 2 * STEP_TOKENS) + 599_999
    books = await budgeted(gateway, limit_pico)
    await books.keep()
    told = events(
        [*[counted(100 * number) for number in range(1, 21)], chunk(usage={**USAGE, "completion_tokens": 2000})]
    )
    gateway.let_all_say(streaming([b"".join(told)] if at_once else told, pause_seconds=0.01))
    got = await gateway.ask(asked)
    passed = [event for event in got.events if b'"content"' in event]
    assert len(passed) <= (0 if at_once else 2 * STEP_TOKENS // 100)
    assert b"budget_exceeded" in got.events[-1]
    [end] = gateway.ends()
    assert (end.state, end.completion_tokens) == ("refused", 100 * len(passed))
    await books.keep()
    row = await in_database(UsageRecord.objects.get)
    assert row.amount_pico is not None
    assert books.left() == limit_pico - row.amount_pico >= 0


@pytest.mark.usefixtures("emptied")
async def test_a_stream_that_ends_while_it_asks_for_its_next_part_holds_nothing_more(gateway: Gateway) -> None:
    books = await budgeted(gateway, 10**12)
    await books.keep()
    said = events([counted(200), chunk(usage={**USAGE, "completion_tokens": 200})])
    gateway.let_all_say(streaming([b"".join(said)]))
    # a client that does not take the last piece leaves time for what still runs
    await gateway.exchange(body(stream=True, max_tokens=2000), takes=1).run()
    assert isinstance(gateway.records()[-1], End), "a START behind it would be taken for a request that runs"
    for _ in range(3):
        await books.keep()
    assert books.holds() == {}


@pytest.mark.usefixtures("emptied")
@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (None, (False, False)),
        ({"include_usage": True}, (False, True)),
        ({"continuous_usage_stats": True}, (False, False)),
        ({"include_usage": True, "continuous_usage_stats": True}, (True, True)),
    ],
)
async def test_a_client_sees_the_usage_that_it_asked_for(
    gateway: Gateway, options: dict[str, bool] | None, seen: tuple[bool, bool]
) -> None:
    books = await budgeted(gateway, 10**12)
    await books.keep()
    said = [counted(100), counted(200), chunk(usage={**USAGE, "completion_tokens": 200})]
    gateway.let_all_say(streaming(events(said)))
    got = await gateway.ask(body(stream=True, max_tokens=300, stream_options=options))
    assert gateway.bodies()[-1]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    with_each, at_the_end = seen
    if not with_each:
        said[:2] = [delta("100,"), delta("200,")]
    expected = said if at_the_end else said[:2]
    assert got.events == [event.removesuffix(b"\n\n") for event in events(expected)]
    await until(lambda: books.left() == 10**12 - 8 * 150_000 - 4 * 15_000 - 200 * 600_000)


async def test_a_model_without_a_price_is_refused_under_a_hard_budget_and_to_nobody_else(gateway: Gateway) -> None:
    books = await budgeted(gateway, 10**12, priced=False)
    await books.keep()
    refused = await gateway.ask(body())
    assert (refused.status, refused.error["code"]) == (503, "price_missing")
    assert (await gateway.ask(body(), key=gateway.world.globex.secret)).status == 200


@pytest.mark.usefixtures("emptied")
async def test_a_request_that_is_refused_or_fails_holds_nothing_afterwards(gateway: Gateway) -> None:
    books = await budgeted(gateway, 10**12)
    await books.keep()
    for engine in gateway.engines:
        await engine.stop()
    await gateway.set_policy(queue_seconds=0)
    assert (await gateway.ask(body())).status >= 500
    await until(lambda: books.left() == 10**12)
    assert books.holds() == {}


async def test_a_tenant_without_the_cache_holds_no_price_of_a_hit(gateway: Gateway) -> None:
    dear = replace(DEMO_RATES, prediction_hit_pico=10**12, coalesced_pico=10**12)
    books = await budgeted(gateway, 10**11, rates=dear)
    await books.keep()
    later = {"prefer": "respond-async"}
    for headers in ({}, later):
        refused = await gateway.ask(body(temperature=0), headers=headers)
        assert (refused.status, refused.error["code"]) == (429, "budget_exceeded")
    await gateway.set_policy(cache_mode="off")
    assert [(await gateway.ask(body(temperature=0), headers=headers)).status for headers in ({}, later)] == [200, 202]
