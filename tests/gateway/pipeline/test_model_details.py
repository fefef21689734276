"""What ``/v1/models`` adds about a model, and a model that retires: announced, then refused with its replacement."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from django.utils import timezone

from billing.pricing import prices
from billing.pricing.prices import DEMO_RATES
from catalogue import administration, registry
from catalogue.models import Model, ModelRevision
from catalogue.registry import Description
from tenants import policy_epoch
from tenants.models import Tenant
from tests.gateway.fixtures.tenants import HELLO, MODEL, Gateway, in_database, stop_replicas, until
from tests.tenants.customers import OPERATOR

pytestmark = [pytest.mark.django_db(transaction=True)]


async def described(gateway: Gateway, name: str = MODEL, **how: Any) -> dict[str, Any]:
    """Return what a gateway adds about a model."""
    found: dict[str, Any] = (await gateway.ask(method="GET", path=f"/v1/models/{name}", **how)).json["hearth"]
    return found


def shown(gateway: Gateway, name: str = MODEL) -> registry.ServedModel:
    """Return a model of the gateway's snapshot."""
    return gateway.runtime.feed.snapshot.catalogue.models[name]


def add_private(owner: str, name: str) -> None:
    """Register a model that only its owner may call."""
    description = Description(name=name, source=f"/models/{name}", engine="simulated", context_length_tokens=1024)
    registry.register(OPERATOR, Tenant.objects.get(slug=owner), description)


async def test_a_model_says_what_is_known_of_it(gateway: Gateway) -> None:
    def prepare() -> None:
        prices.set_price(OPERATOR, prices.ensure_price_book(), MODEL, DEMO_RATES)
        administration.set_aliases(OPERATOR, MODEL, ["default"])
        arguments = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        ModelRevision.objects.update(engine_args=arguments, file_facts={"chat": True, "vision": False})
        policy_epoch.bump(models=True)

    await in_database(prepare)
    await until(lambda: shown(gateway).engine_args and shown(gateway).aliases)
    found = await described(gateway)
    assert found == {
        "aliases": ["default"],
        "task": "text",
        "context_tokens": 2048,
        "capabilities": {
            "chat": True,
            "completions": True,
            "embeddings": False,
            "tools": True,
            "structured_outputs": True,
            "vision": False,
            "reasoning": None,
            "lora": False,
        },
        "price": {
            "currency": "USD",
            "per_million_tokens": {
                "prompt": "0.15",
                "cached_prompt": "0.015",
                "completion": "0.6",
                "cache_write": "0.15",
                "reasoning": "0.6",
            },
            "per_request": {"request": "0", "prediction_hit": "0", "coalesced": "0"},
        },
        "state": "ready",
        "eta_seconds": None,
        "deprecated_at": None,
        "retires_at": None,
        "replacement": None,
    }
    listed = await gateway.ask(method="GET", path="/v1/models")
    assert [each["hearth"] for each in listed.json["data"]] == [found]


async def test_what_nobody_knows_is_null(gateway: Gateway) -> None:
    await in_database(stop_replicas)
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
    found = await described(gateway)
    assert (found["price"], found["capabilities"]["chat"], found["capabilities"]["vision"]) == (None, None, None)
    assert (found["state"], found["eta_seconds"]) == ("starting", None)


async def test_clients_of_both_protocols_read_the_list(gateway: Gateway) -> None:
    answers = {path: await gateway.ask(method="GET", path=path) for path in ("/v1/models", f"/v1/models/{MODEL}")}
    transport = httpx2.MockTransport(lambda asked: httpx2.Response(200, content=answers[asked.url.path].body))
    client = openai.OpenAI(api_key="k", base_url="http://gateway/v1", http_client=httpx2.Client(transport=transport))
    assert [each.id for each in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "platform")
    assert model.model_extra is not None
    assert model.model_extra["hearth"]["state"] == "ready"
    headers = {"anthropic-version": "2023-06-01"}
    spoken = {path: await gateway.ask(method="GET", path=path, headers=headers) for path in answers}
    told = httpx2.MockTransport(lambda asked: httpx2.Response(200, content=spoken[asked.url.path].body))
    other = anthropic.Anthropic(api_key="k", base_url="http://gateway", http_client=httpx2.Client(transport=told))
    assert [each.id for each in other.models.list()] == [MODEL]
    described = other.models.retrieve(MODEL)
    assert described.model_extra is not None
    assert described.model_extra["hearth"]["task"] == "text"


async def test_a_retirement_is_announced_with_each_answer_until_then(gateway: Gateway) -> None:
    at = (timezone.now() + timedelta(days=30)).replace(microsecond=0)

    def retire() -> None:
        add_private("acme", "next")
        administration.set_retirement(OPERATOR, MODEL, at, "next")

    assert "sunset" not in (await gateway.ask(HELLO)).answer_headers
    await in_database(retire)
    await until(lambda: shown(gateway).retires_at is not None)
    answer = await gateway.ask({**HELLO, "seed": 1})
    assert answer.status == 200
    assert parsedate_to_datetime(answer.answer_headers["sunset"]) == at
    announced = datetime.fromtimestamp(int(answer.answer_headers["deprecation"].removeprefix("@")), UTC)
    assert announced <= timezone.now()
    assert answer.answer_headers["link"] == '</v1/models/next>; rel="successor-version"'
    found = await described(gateway)
    assert (datetime.fromisoformat(found["retires_at"]), found["replacement"]) == (at, "next")


async def test_a_model_that_has_retired_is_refused_and_its_replacement_is_named_to_those_who_may_call_it(
    gateway: Gateway,
) -> None:
    def retire() -> None:
        add_private("acme", "next")
        administration.set_retirement(OPERATOR, MODEL, timezone.now() + timedelta(days=1), "next")
        Model.objects.filter(name=MODEL).update(retires_at=timezone.now() - timedelta(seconds=1))
        policy_epoch.bump(models=True)

    await in_database(retire)
    await until(
        lambda: shown(gateway).retires_at is not None and "next" in gateway.runtime.feed.snapshot.catalogue.models
    )
    own = await gateway.ask(HELLO)
    assert (own.status, own.error["code"], own.error["param"]) == (404, "model_retired", "model")
    assert "Use 'next' instead" in own.error["message"]
    stranger = await gateway.ask(HELLO, key=gateway.world.globex.secret)
    assert (stranger.status, stranger.error["code"]) == (404, "model_retired")
    assert "next" not in stranger.error["message"]
    listed = await gateway.ask(method="GET", path="/v1/models")
    assert [each["id"] for each in listed.json["data"]] == ["next"]
    named = await gateway.ask(method="GET", path=f"/v1/models/{MODEL}")
    assert (named.status, named.error["code"]) == (404, "model_retired")
    assert not gateway.bodies()
