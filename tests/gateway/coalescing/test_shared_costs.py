"""What shared answers cost under a hard budget, through a whole gateway and a real drain: never more than is left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from billing.pricing.prices import DEMO_RATES
from billing.reports import savings, statements, usage
from billing.reports.savings import By, Prediction, Savings
from billing.reports.usage import floor
from tenants.database import rls
from tenants.ids import TenantId, created_at
from tests.billing import conftest as billed
from tests.billing.usage_records import Span
from tests.gateway.coalescing.test_coalescer import Paced, done, following, lead, start
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.budget import CHARGED_PICO, MOST_NEW_TOKENS, budgeted, held_pico
from tests.gateway.fixtures.tenants import STREAMED, Gateway, in_database, until

ASKED = {**STREAMED, "max_tokens": MOST_NEW_TOKENS}
FOLLOWERS, HITS = 11, 37
BY: tuple[By, ...] = ("tenant", "project", "key", "model")
TOKENS = 8 + 4 + 3


@pytest.mark.usefixtures("emptied")
@pytest.mark.parametrize("coalesced_pico", [10**7, 2 * held_pico(ASKED)], ids=["cheap", "dearer than an engine"])
async def test_shared_answers_never_overspend_a_budget_and_all_books_agree(
    gateway: Gateway, coalesced_pico: int
) -> None:
    most_pico = max(held_pico(ASKED), coalesced_pico)
    limit_pico = (1 + FOLLOWERS) * most_pico + held_pico(ASKED) // 2
    shared_pico = CHARGED_PICO + FOLLOWERS * coalesced_pico
    hit_pico = (limit_pico - shared_pico) // HITS
    rates = replace(DEMO_RATES, coalesced_pico=coalesced_pico, prediction_hit_pico=hit_pico)
    books = await budgeted(gateway, limit_pico, rates=rates)
    await books.keep()

    refused = await share(gateway)
    await until(lambda: books.left() == limit_pico - shared_pico)
    hits = await asyncio.gather(*[gateway.ask(ASKED) for _ in range(HITS + 20)])
    given = [each for each in hits if each.status == 200]
    assert {each.answer_headers["x-cache"] for each in given} == {"hit"}
    refused += [each for each in hits if each.status != 200]
    assert (len(given), {(each.status, each.error["code"]) for each in refused}) == (HITS, {(429, "budget_exceeded")})
    spent_pico = shared_pico + HITS * hit_pico
    await until(lambda: books.left() == limit_pico - spent_pico)
    assert len(gateway.bodies()) == 1

    await books.keep()
    assert (books.holds(), books.left()) == ({}, limit_pico - spent_pico)
    saved_pico = (FOLLOWERS - 1) * (CHARGED_PICO - coalesced_pico) + HITS * (CHARGED_PICO - hit_pico)
    await in_database(lambda: agree(gateway, spent_pico, saved_pico))


async def share(gateway: Gateway) -> list[Exchange]:
    """Send too many identical requests at once; return the refused. A follower leaves after its first chunk."""
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, ASKED)
    others = start(gateway, ASKED, FOLLOWERS + 30)
    await until(lambda: sum(task.done() for _, task in others) == 30 and len(following(gateway)) == FOLLOWERS)
    admitted = [each for each in others if not each[1].done()]
    leaving = admitted[0][0]
    await until(lambda: b"data:" in leaving.body)
    leaving.disconnect.set()
    await until(lambda: [end.state for end in gateway.ends()] == ["client_gone"])
    engine.go_on.set()
    told = await done(first, *admitted)
    assert {each.status for each in told} == {200}
    return [await task for one, task in others if (one, task) not in admitted]


def agree(gateway: Gateway, spent_pico: int, saved_pico: int) -> None:
    """Check that rows, roll-ups, ledger, statement and savings say the same, read as the tenant."""
    assert billed.sums() == billed.Sums(usage_pico=spent_pico, rollup_pico=spent_pico, ledger_pico=spent_pico)
    tenant = gateway.world.acme.tenant
    tenant_id = TenantId(tenant.id)
    ids = [begun.request_id for begun in gateway.starts()]
    around = Span(start=floor(created_at(min(ids))), end=floor(created_at(max(ids))) + timedelta(minutes=15))
    month = created_at(min(ids)).astimezone(ZoneInfo(tenant.billing_timezone))
    with rls.as_tenant(tenant_id):
        stated = statements.statement(tenant_id, month.year, month.month)
        total = usage.totals(around, tenant_id)
        grouped = {by: savings.grouped(around, tenant_id, by) for by in BY}
    assert (stated.amount_pico, stated.equals_ledger) == (spent_pico, True)
    quantities = {line.token_class: line.quantity for line in stated.lines}
    assert quantities == {
        "prompt": 8,
        "cached_prompt": 4,
        "completion": 3,
        "coalesced": FOLLOWERS,
        "prediction_hit": HITS,
    }
    told = Savings.of(total).prediction
    avoided_ms = told.engine_ms
    assert told == Prediction(
        hits=HITS,
        coalesced=FOLLOWERS,
        misses=1,
        bypassed=0,
        tokens=(FOLLOWERS - 1 + HITS) * TOKENS,
        engine_ms=avoided_ms,
        pico=saved_pico,
    )
    by_statement = stated.savings
    assert (by_statement.prediction_pico, by_statement.prediction_tokens) == (saved_pico, told.tokens)
    assert (by_statement.prediction_engine_ms, by_statement.prefix_pico) == (avoided_ms, total.saved_prefix_pico)
    assert total.amount_pico == spent_pico
    for by, groups in grouped.items():
        assert [group.sums for group in groups] == [total], by
