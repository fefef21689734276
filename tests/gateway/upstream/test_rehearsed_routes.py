"""Where a request would go now is decided by what the running gateways know, and changes nothing of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest
from django.conf import settings

from catalogue import routing_policy
from gateway.errors import BadRequest, Forbidden
from gateway.upstream.routing import memory, rehearsal
from gateway.upstream.routing.rehearsal import Rehearsal
from routing import explanation
from routing.errors import NotShared
from tenants.errors import KeyRefused
from tenants.keys import keys
from tests.gateway.fixtures.tenants import HELLO, Gateway, in_database
from tests.tenants.customers import OPERATOR, Customer
from workers.fleet import operations

pytestmark = [pytest.mark.django_db(transaction=True)]

CHAT = "/v1/chat/completions"
DOCUMENT = {"role": "system", "content": "what keeps a room warm " * 400}


def question(text: str) -> dict[str, Any]:
    return {**HELLO, "messages": [DOCUMENT, {"role": "user", "content": text}]}


async def rehearsed(customer: Customer, body: dict[str, Any], session: str | None = None) -> Rehearsal:
    raw = orjson.dumps(body)
    return await in_database(lambda: rehearsal.rehearse(raw, CHAT, customer.key.public_id, session))


async def test_the_decision_is_the_one_that_the_gateway_then_makes(gateway: Gateway) -> None:
    world = gateway.world
    await gateway.ask(question("one"))
    before = memory._path().read_bytes()
    found = await rehearsed(world.acme, question("two"))
    again = await rehearsed(world.acme, question("two"), "a session")
    stranger = await rehearsed(world.globex, question("two"))
    assert memory._path().read_bytes() == before
    assert gateway.loads() == [0, 0]
    assert found.has_room and again.decision.home is not None
    assert (found.decision.reason, found.decision.diverged_message) == ("prefix", 2)
    assert {each.replica_id for each in found.decision.candidates} == {each.id for each in world.replicas}
    assert {each.warm_tokens for each in stranger.decision.candidates} == {0}
    sent = await gateway.ask(question("two"))
    said, expected = sent.answer_headers["x-route"], explanation.header(found.decision)
    assert said.partition("seconds=")[0] == expected.partition("seconds=")[0]


async def test_the_policy_of_the_deployment_decides(gateway: Gateway) -> None:
    policy = routing_policy.parse("round-robin")
    await in_database(lambda: operations.route(OPERATOR, gateway.world.deployment.name, policy))
    assert (await rehearsed(gateway.world.acme, question("one"))).decision.policy == policy


async def test_what_the_gateway_would_refuse_is_refused(gateway: Gateway) -> None:
    acme = gateway.world.acme
    for body in ({**HELLO, "model": "none"}, {**HELLO, "n": 1000}):
        with pytest.raises(BadRequest):
            await rehearsed(acme, body)
    with pytest.raises(KeyRefused):
        await in_database(lambda: rehearsal.rehearse(b"{}", CHAT, "nobody"))


async def test_what_a_key_may_not_do_is_refused(gateway: Gateway) -> None:
    acme = gateway.world.acme
    for code, models, scopes in (
        ("model_not_allowed", ("other",), ("inference",)),
        ("scope_missing", (), ("cache:read",)),
    ):
        issue = partial(keys.issue, OPERATOR, acme.project, name=code, allowed_models=models, scopes=scopes)
        narrow = await in_database(issue)
        with pytest.raises(Forbidden) as refused:
            await rehearsed(replace(acme, key=narrow.key), question("one"))
        assert refused.value.code == code


async def test_without_a_gateway_on_this_host_nothing_is_known(gateway: Gateway) -> None:
    path = settings.ROUTING_MEMORY
    settings.ROUTING_MEMORY = path.with_name("none")
    try:
        with pytest.raises((OSError, NotShared)):
            await rehearsed(gateway.world.acme, question("one"))
    finally:
        settings.ROUTING_MEMORY = path
