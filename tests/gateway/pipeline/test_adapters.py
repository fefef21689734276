"""Requests for LoRA adapters: where they go, when they wait, and that a stranger learns nothing of one.

Acme has the adapter ``demo:tone`` of the public model ``demo``. To globex it does not exist.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

import hearth.celery  # noqa: F401 - whoever sends a task needs the app configured first
from billing.pricing import prices
from billing.pricing.rating import Rates
from billing.reports import statements
from catalogue import adapters, registry
from catalogue.adapters import Adapter
from catalogue.models import Model, ModelRevision
from catalogue.registry import Description
from tenants.ids import TenantId, created_at
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.budget import CHARGED_PICO, body, budgeted
from tests.gateway.fixtures.tenants import DOORS, HELLO, MODEL, STREAMED, Gateway, in_database, until
from tests.tenants.customers import OPERATOR
from workers.models import AdapterLoad, Deployment, ScaleDecision
from workers.scheduler.scaling import autoscaler
from workers.serving import endpoints

pytestmark = [pytest.mark.django_db(transaction=True)]

either_way = pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
NAME, NOTHING = f"{MODEL}:tone", f"{MODEL}:none"
#: Another price than its base has.
TONE_RATES = Rates(prompt_pico=300_000, cached_prompt_pico=30_000, completion_pico=900_000)
#: Every path that names a model in its body, with what else it needs.
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO["messages"]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HELLO["messages"], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": HELLO["messages"]},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/tokenize": {"prompt": "Hi"},
}


def make(gateway: Gateway) -> None:
    """Register the adapter, and let no replica have loaded it yet."""
    ModelRevision.objects.filter(id=gateway.world.revision.id).update(options={"lora_adapters": 2})
    described = Description(
        name=NAME,
        source="/adapters/tone",
        engine="simulated",
        context_length_tokens=0,
        adapter=Adapter(rank=8),
    )
    base = Model.objects.get(name=MODEL)
    revision = registry.record(OPERATOR, gateway.world.acme.tenant, described, base=base)
    for replica in gateway.world.replicas:
        AdapterLoad.objects.create(replica=replica, revision=revision)
    endpoints.announce()


def load(state: str, *, first: int = 2) -> None:
    """Set the state of the adapter on the ``first`` replicas, as their agents do."""
    name = adapters.engine_name(NAME, ModelRevision.objects.get(model__name=NAME).digest)
    rows = list(AdapterLoad.objects.order_by("replica_id")[:first])
    facts = {"engine_name": name, "generation": 1, "error": "", "next_attempt_at": None}
    if state == "failed":
        facts |= {
            "error": "/adapters/tone: rank 99 is too large",
            "next_attempt_at": Now(),
            "attempts": AdapterLoad.ATTEMPTS,
        }
    AdapterLoad.objects.filter(id__in=[row.id for row in rows]).update(state=state, **facts)
    endpoints.announce()


@pytest.fixture(autouse=True)
async def adapter(gateway: Gateway) -> None:
    """Register the adapter."""
    await in_database(lambda: make(gateway))
    await until(lambda: gateway.runtime.feed.snapshot.catalogue.models.get(NAME))


async def loaded(gateway: Gateway, *, first: int = 2) -> None:
    await in_database(lambda: load("loaded", first=first))
    await until(lambda: len(gateway.runtime.feed.snapshot.endpoints.get(NAME, ())) == first)


async def refused(gateway: Gateway) -> None:
    await in_database(lambda: load("failed"))
    await until(lambda: NAME in gateway.runtime.feed.snapshot.refused_adapters)


def told(exchange: Exchange) -> tuple[int, str]:
    return exchange.status, exchange.error["code"]


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
@either_way
async def test_requests_go_only_where_the_adapter_is_loaded(gateway: Gateway, body: Any) -> None:
    await loaded(gateway, first=1)
    for seed in range(4):
        assert (await gateway.ask({**body, "model": NAME, "seed": seed})).status == 200
    has_it = min(gateway.world.replicas, key=lambda each: each.id)
    engine, other = (gateway.engines[index] for index in ((0, 1) if has_it == gateway.world.replicas[0] else (1, 0)))
    assert [each["model"].partition("@")[0] for each in engine.bodies] == [NAME] * 4
    assert other.bodies == []
    assert {start.model_name for start in gateway.starts()} == {NAME}


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_for_a_stranger_the_adapter_does_not_exist(gateway: Gateway) -> None:
    await loaded(gateway)
    key = gateway.world.globex.secret
    for headers in ({}, {"prefer": "respond-async"}, {"cache-control": "only-if-cached"}):
        for path, fields in PATHS.items():
            answers = [
                await gateway.ask({"model": name, **fields}, key=key, headers=headers, path=path)
                for name in (NAME, NOTHING)
            ]
            assert [each.status for each in answers] == [404, 404], (path, headers)
            assert answers[0].body.replace(NAME.encode(), NOTHING.encode()) == answers[1].body, (path, headers)
    named = [await gateway.ask(b"", key=key, method="GET", path=f"/v1/models/{name}") for name in (NAME, NOTHING)]
    assert [each.status for each in named] == [404, 404]
    assert named[0].body.replace(NAME.encode(), NOTHING.encode()) == named[1].body
    listed = [await gateway.ask(b"", key=each, method="GET", path="/v1/models") for each in (key, None)]
    assert [NAME.encode() in each.body for each in listed] == [False, True]
    assert gateway.bodies() == []


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
@either_way
async def test_an_adapter_that_no_engine_loads_fails_at_once_and_says_so(gateway: Gateway, body: Any) -> None:
    await refused(gateway)
    found = await gateway.ask({**body, "model": NAME})
    assert told(found) == (503, "adapter_not_loaded")
    assert "x-should-retry" not in found.answer_headers
    assert int(found.answer_headers["retry-after"]) >= 1
    assert "rank 99" not in found.error["message"]
    assert (await gateway.ask({**body})).status == 200
    await loaded(gateway, first=1)
    assert (await gateway.ask({**body, "model": NAME})).status == 200


async def test_a_request_that_waits_ends_when_the_last_engine_refuses_the_adapter(gateway: Gateway) -> None:
    waiting = asyncio.create_task(gateway.ask({**HELLO, "model": NAME}))
    await until(gateway.held)
    await in_database(lambda: load("failed", first=1))
    await asyncio.sleep(0)
    assert gateway.held() == 1
    await refused(gateway)
    assert told(await waiting) == (503, "adapter_not_loaded")


async def test_without_lora_in_its_base_an_adapter_fails_at_once(gateway: Gateway) -> None:
    def turn_off() -> None:
        ModelRevision.objects.filter(id=gateway.world.revision.id).update(options={})
        endpoints.announce()

    await in_database(turn_off)
    await until(lambda: NAME in gateway.runtime.feed.snapshot.refused_adapters)
    found = await gateway.ask({**HELLO, "model": NAME})
    assert told(found) == (503, "adapter_not_loaded")
    assert "retry-after" not in found.answer_headers
    assert found.answer_headers["x-should-retry"] == "false"


async def test_an_adapter_has_its_own_price_on_the_statement_and_its_base_the_other(gateway: Gateway) -> None:
    await loaded(gateway)
    limit_pico = 10**12
    books = await budgeted(gateway, limit_pico)
    await books.keep()
    unpriced = await gateway.ask(body(model=NAME))
    assert told(unpriced) == (503, "price_missing")

    def price() -> None:
        prices.set_price(OPERATOR, prices.ensure_price_book(), NAME, TONE_RATES)

    await in_database(price)
    acme = gateway.world.acme.tenant.id
    await until(lambda: gateway.runtime.feed.snapshot.prices.at(acme, NAME, timezone.now()))
    assert (await gateway.ask(body(model=NAME))).status == 200
    assert (await gateway.ask(body())).status == 200
    tone_pico = 8 * 300_000 + 4 * 30_000 + 3 * 900_000
    await until(lambda: books.left() == limit_pico - CHARGED_PICO - tone_pico)
    await books.keep()
    started = created_at(gateway.starts()[-1].request_id)
    found = await in_database(lambda: statements.statement(TenantId(acme), started.year, started.month))
    assert found.equals_ledger
    amounts: dict[str, int] = {}
    for line in found.lines:
        amounts[line.model_name] = amounts.get(line.model_name, 0) + line.amount_pico
    assert amounts == {MODEL: CHARGED_PICO, NAME: tone_pico}


async def test_a_request_for_an_adapter_wakes_its_base_from_zero(gateway: Gateway) -> None:
    def to_zero() -> None:
        tenants.stop_replicas()
        Deployment.objects.update(desired_replicas=0)

    await in_database(to_zero)
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
    waiting = asyncio.create_task(gateway.ask({**HELLO, "model": NAME}))
    await until(gateway.held)

    def woken() -> list[tuple[str, str]]:
        with transaction.atomic():
            autoscaler.decide_all()
        return list(ScaleDecision.objects.values_list("deployment__name", "action"))

    for _ in range(600):
        if found := await in_database(woken):
            break
        await asyncio.sleep(0.1)
    assert found == [("demo", "wake")]
    ports = [engine.port for engine in gateway.engines]
    await in_database(lambda: tenants.place(gateway.world, ports))
    await loaded(gateway)
    assert (await waiting).status == 200
