"""A replica is explained to the tenant in a header, to operators by the kept decision, to both in the usage row."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gateway import metrics
from routing import decision_record, explanation
from routing.explanation import Decision
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import hang_up
from tests.gateway.fixtures.tenants import HELLO, Gateway, in_database, until
from workers.models import Replica

pytestmark = [pytest.mark.django_db(transaction=True)]

DOCUMENT = {"role": "system", "content": "what keeps a room warm " * 400}


def question(text: str, **more: Any) -> dict[str, Any]:
    """Return a question about the document."""
    return {**HELLO, "messages": [DOCUMENT, {"role": "user", "content": text}], **more}


async def decisions(gateway: Gateway, exchange: Exchange) -> list[Decision]:
    """Return what is kept of a request's decisions."""
    gateway.runtime.decisions.send()
    items = await gateway.runtime.redis[-1].execute(b"LRANGE", decision_record.KEY, 0, -1)
    return decision_record.of_request(items, UUID(exchange.answer_headers["x-request-id"]))


async def test_what_was_expected_is_in_the_header_the_usage_row_and_the_kept_decision(gateway: Gateway) -> None:
    cold = await gateway.ask(question("one"))
    warm = await gateway.ask(question("two", stream=True))
    reason, *parameters = warm.answer_headers["x-route"].split("; ")
    told = dict(each.split("=") for each in parameters)
    assert (reason, list(told)) == ("prefix", ["by", "warm_tokens", "seconds", "policy"])
    (first,), (second,) = await decisions(gateway, cold), await decisions(gateway, warm)
    acme = gateway.world.acme.tenant.id
    assert (second.tenant_id, second.model, second.reason) == (acme, HELLO["model"], "prefix")
    assert {each.replica_id for each in second.candidates} == {each.id for each in gateway.world.replicas}
    assert second.replica_id == first.replica_id
    assert told["by"] == explanation.deciding_term(second)
    assert int(told["warm_tokens"]) == explanation.chosen(second).warm_tokens == 2301
    before, after = gateway.ends()
    # of the 12 prompt tokens that the engine counted
    assert (before.predicted_cached_tokens, before.nearest_warm_tokens, before.diverged_message) == (0, 0, 1)
    assert (after.predicted_cached_tokens, after.nearest_warm_tokens, after.diverged_message) == (11, 11, 2)
    assert after.cached_prompt_tokens == 4


async def test_a_stranger_s_prompt_is_as_cold_as_a_new_one(gateway: Gateway) -> None:
    await gateway.ask(question("one"))
    theirs = await gateway.ask(question("one"), key=gateway.world.globex.secret)
    assert "; warm_tokens=0; " in theirs.answer_headers["x-route"]
    assert gateway.ends()[-1].nearest_warm_tokens == 0


async def test_each_attempt_is_kept_and_the_last_counts(gateway: Gateway) -> None:
    gateway.engines[0].say = hang_up
    while not gateway.engines[0].bodies:  # its turn comes: the fewest seconds, then who has waited longest
        got = await gateway.ask({**HELLO, "temperature": 1})
    found = await decisions(gateway, got)
    assert [len(each.candidates) for each in found] == [2, 1]
    assert [each.replica_id for each in found] == [each.id for each in gateway.world.replicas]
    assert got.answer_headers["x-route"] == explanation.header(found[1])


async def test_the_metrics_of_a_replica_end_with_it(gateway: Gateway) -> None:
    def counted() -> dict[str, float]:
        (family,) = metrics._PREFIX_TOKENS.collect()
        return {each.labels["kind"]: each.value for each in family.samples if each.labels["replica"] in replicas}

    replicas = {str(each.id) for each in gateway.world.replicas}
    await gateway.ask(question("one"))
    assert counted() == {"prompt": 12, "predicted": 0, "cached": 4}
    await in_database(tenants.stop_replicas)
    await until(lambda: not counted())


async def test_what_no_engine_counted_is_compared_with_nothing(gateway: Gateway) -> None:
    await gateway.ask()
    hit = await gateway.ask()
    assert (hit.answer_headers["x-cache"], "x-route" in hit.answer_headers) == ("hit", False)
    assert gateway.ends()[-1].predicted_cached_tokens is None
    assert await decisions(gateway, hit) == []


async def test_the_router_knows_how_much_an_engine_keeps_in_host_memory(gateway: Gateway) -> None:
    router = gateway.runtime.pipeline._components.dispatcher._router
    (first, second) = (each.id for each in gateway.world.replicas)
    await in_database(lambda: Replica.objects.filter(id=first).update(cache_tokens=5_000, host_cache_tokens=70_000))
    await until(lambda: router._known(first).boot.host_cache_tokens == 70_000)
    assert router._known(first).boot.cache_tokens == 5_000
    assert router._known(second).boot.host_cache_tokens is None
