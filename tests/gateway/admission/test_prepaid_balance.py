"""The prepaid balance through a whole gateway, a real drain and its reconciler: what it admits, and from when on."""

from __future__ import annotations

import asyncio
import os

import pytest
from django.db.models import Sum
from redis import Redis

from billing.accounts import account
from billing.budgets import spending
from billing.models import UsageRecord
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.budget import CHARGED_PICO, body, give_credit, held_pico, paid_in_advance
from tests.gateway.fixtures.scripted_app import after
from tests.gateway.fixtures.tenants import Gateway, in_database, until
from tests.tenants.customers import OPERATOR


@pytest.mark.usefixtures("emptied")
async def test_two_hundred_at_once_overspend_a_small_balance_by_nothing(gateway: Gateway) -> None:
    credit_pico = 37 * held_pico(body()) + CHARGED_PICO
    books = await paid_in_advance(gateway, credit_pico)
    unknown = await gateway.ask(body())
    assert (unknown.status, unknown.error["code"]) == (503, "budget_unknown"), "nobody has counted yet"
    assert "The remaining prepaid balance is being computed." in unknown.error["message"]
    await books.keep()
    assert books.left() == credit_pico

    released = asyncio.Event()
    gateway.let_all_say(after(released))
    exchanges = [gateway.exchange(body(seed=100 + number)) for number in range(200)]
    sent = [asyncio.ensure_future(exchange.run()) for exchange in exchanges]
    await until(lambda: sum(one.done() for one in sent) == 163)
    await books.keep()
    assert books.left() == CHARGED_PICO
    released.set()
    answers: list[Exchange] = await asyncio.gather(*sent)

    refused = [answer for answer in answers if answer.status != 200]
    assert sum(answer.status == 200 for answer in answers) == 37
    assert {(answer.status, answer.error["code"]) for answer in refused} == {(402, "insufficient_balance")}
    assert {answer.answer_headers["x-should-retry"] for answer in refused} == {"false"}
    await until(lambda: books.left() == credit_pico - 37 * CHARGED_PICO)
    await books.keep()
    charged = await in_database(lambda: UsageRecord.objects.aggregate(total=Sum("amount_pico"))["total"])
    assert charged == 37 * CHARGED_PICO <= credit_pico
    assert (books.holds(), books.left()) == ({}, credit_pico - charged)
    assert await in_database(lambda: spending.available_pico(books.budget)) == credit_pico - charged


@pytest.mark.usefixtures("emptied")
async def test_a_top_up_admits_with_the_next_round_and_a_lost_redis_admits_nothing_until_it_is_counted(
    gateway: Gateway,
) -> None:
    books = await paid_in_advance(gateway, 0)
    await books.keep()
    assert books.left() == 0
    assert (await gateway.ask(body())).error["code"] == "insufficient_balance"
    await in_database(lambda: give_credit(gateway.world.acme.tenant, held_pico(body())))
    await books.keep()
    assert (await gateway.ask(body())).status == 200
    await until(lambda: books.left() == held_pico(body()) - CHARGED_PICO)
    await books.keep()
    with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        redis.flushall()
    assert (await gateway.ask(body(seed=101))).error["code"] == "budget_unknown"
    await books.keep()
    assert books.left() == held_pico(body()) - CHARGED_PICO
    assert (await gateway.ask(body(seed=102))).error["code"] == "insufficient_balance"
    assert (await gateway.ask(body(), key=gateway.world.globex.secret)).status == 200


@pytest.mark.usefixtures("emptied")
async def test_a_tenant_that_pays_afterwards_again_is_not_checked_and_a_new_balance_is_counted_anew(
    gateway: Gateway,
) -> None:
    tenant = gateway.world.acme.tenant
    books = await paid_in_advance(gateway, 10**12)
    await books.keep()

    async def pays(mode: str) -> None:
        await in_database(lambda: account.change(OPERATOR, tenant, mode=mode))
        public_id = gateway.world.acme.key.public_id
        feed, wanted = gateway.runtime.feed, mode == "prepaid"
        await until(lambda: bool(feed.snapshot.callers.caller(public_id).budgets) == wanted)

    await pays("postpaid")
    assert (await gateway.ask(body(seed=101))).status == 200
    await pays("prepaid")
    assert (await gateway.ask(body(seed=102))).error["code"] == "budget_unknown", "the old counter is not used again"
    [balance] = await in_database(lambda: spending.prepaid_balances([tenant.id]))
    assert balance.id != books.budget.id
    await books.keep()
    assert (await gateway.ask(body(seed=103))).status == 200
