"""Requests while a rollout replaces the replicas of their model: which engines get them, and what is stored of them."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from catalogue.registry import ServedModel
from tests.gateway.fixtures import rollouts
from tests.gateway.fixtures.rollouts import roll_out, serving
from tests.gateway.fixtures.scripted_app import answer, hello, saying
from tests.gateway.fixtures.tenants import HELLO, MODEL, STREAMED, WITH_USAGE, Gateway, in_database, until
from workers.models import Deployment, GatewayLoad, Replica
from workers.serving import gateway_load
from workers.serving.endpoints import Endpoint, Watch
from workers.serving.rollout_policy import RolloutPolicy

pytestmark = [pytest.mark.django_db(transaction=True)]


def model(gateway: Gateway) -> ServedModel:
    """Return the model as the gateway knows it."""
    return gateway.runtime.feed.snapshot.catalogue.models[MODEL]


def several(count: int) -> list[dict[str, Any]]:
    """Return requests that all differ."""
    return [{**HELLO, "seed": seed} for seed in range(count)]


async def finish(gateway: Gateway, rollout: Any) -> None:
    """Finish the rollout, and wait until the gateway knows."""
    before = model(gateway).revision_id
    await in_database(lambda: rollouts.finish(rollout))
    await until(lambda: model(gateway).revision_id != before)


async def test_a_new_replica_gets_requests_once_it_has_passed_its_canary(gateway: Gateway) -> None:
    old, new = (replica.id for replica in gateway.world.replicas)
    await in_database(lambda: rollouts.begin(gateway.world, canary=Replica.Canary.PENDING))
    await until(lambda: serving(gateway) == {old})
    for canary in (Replica.Canary.RUNNING, Replica.Canary.FAILED):
        await in_database(lambda canary=canary: rollouts.change(new, canary=canary))  # type: ignore[misc]
        for body in several(3):
            assert (await gateway.ask(body, headers={"cache-control": "no-store"})).status == 200
    assert gateway.engines[1].bodies == []
    await in_database(lambda: rollouts.change(new, canary=Replica.Canary.PASSED))
    await until(lambda: serving(gateway) == {old, new})
    for body in several(4):
        assert (await gateway.ask(body, headers={"cache-control": "no-store"})).status == 200
    assert gateway.engines[1].bodies != []


async def test_without_an_earlier_replica_a_request_waits_for_the_canary(gateway: Gateway) -> None:
    old, new = (replica.id for replica in gateway.world.replicas)
    await in_database(lambda: rollouts.begin(gateway.world, canary=Replica.Canary.PENDING))
    await in_database(lambda: rollouts.change(old, state=Replica.State.STOPPED))
    await until(lambda: not serving(gateway))
    asked = asyncio.ensure_future(gateway.ask())
    await until(lambda: gateway.held() == 1)
    await in_database(lambda: rollouts.change(new, canary=Replica.Canary.PASSED))
    assert (await asked).status == 200
    assert len(gateway.engines[1].bodies) == 1


async def test_both_revisions_serve_and_usage_names_the_one_that_answered(gateway: Gateway) -> None:
    await roll_out(gateway)
    for body in several(6):
        assert (await gateway.ask(body)).status == 200
    assert all(engine.bodies for engine in gateway.engines)
    revision_of = await in_database(lambda: dict(Replica.objects.values_list("id", "revision_id")))
    assert len(set(revision_of.values())) == 2
    assert {start.replica_id: start.revision_id for start in gateway.starts()} == revision_of


async def test_a_retry_at_another_revision_is_the_one_that_usage_names(gateway: Gateway) -> None:
    _, new = await roll_out(gateway)
    gateway.engines[1].say = saying({"error": {"message": "out of memory"}}, status=500)
    for body in several(4):
        assert (await gateway.ask(body)).status == 200
    tried, last = (start for start in gateway.starts() if start.request_id == retried(gateway))
    assert (tried.replica_id, last.revision_id) == (new, gateway.world.revision.id)
    assert tried.revision_id != last.revision_id


def retried(gateway: Gateway) -> object:
    """Return the id of the one request that two engines got."""
    ids = [start.request_id for start in gateway.starts()]
    (found,) = {each for each in ids if ids.count(each) == 2}
    return found


@pytest.mark.parametrize("body", [HELLO, STREAMED, WITH_USAGE], ids=["whole", "stream", "usage"])
async def test_what_the_new_revision_answers_is_found_after_the_rollout_and_never_before(
    gateway: Gateway, body: dict[str, Any]
) -> None:
    rollout, _ = await roll_out(gateway, alone=True)
    for _ in range(2):
        got = await gateway.ask(body)
        assert (got.status, got.answer_headers["x-cache"]) == (200, "miss")
    assert len(gateway.bodies()) == 2
    await finish(gateway, rollout)
    hit = await gateway.ask(body)
    assert (hit.status, hit.answer_headers["x-cache"], len(gateway.bodies())) == (200, "hit", 2)
    (of_hit,) = [start for start in gateway.starts() if start.cache_result == "hit"]
    assert of_hit.revision_id == model(gateway).revision_id != gateway.world.revision.id
    stranger = await gateway.ask(body, key=gateway.world.globex.secret)
    assert stranger.answer_headers["x-cache"] == "miss"


async def test_what_the_earlier_revision_answered_is_found_until_the_rollout_is_done(gateway: Gateway) -> None:
    gateway.let_all_say(saying(answer("earlier")))
    await gateway.ask()
    gateway.let_all_say(saying(answer("new")))
    rollout, _ = await roll_out(gateway, alone=True)
    hit = await gateway.ask()
    assert (hit.answer_headers["x-cache"], hit.json) == ("hit", answer("earlier"))
    (_, of_hit) = gateway.starts()
    assert of_hit.revision_id == gateway.world.revision.id
    await finish(gateway, rollout)
    first, again = await gateway.ask(), await gateway.ask()
    assert [one.answer_headers["x-cache"] for one in (first, again)] == ["miss", "hit"]
    assert [one.json for one in (first, again)] == [answer("new")] * 2


async def test_requests_that_follow_one_at_the_new_revision_get_its_answer(gateway: Gateway) -> None:
    await roll_out(gateway, alone=True)
    released = asyncio.Event()

    async def wait(request: Any, body: dict[str, Any]) -> Any:
        await released.wait()
        return await hello(request, body)

    gateway.engines[1].say = wait
    asked = [asyncio.ensure_future(gateway.ask()) for _ in range(3)]
    await until(lambda: len(gateway.starts()) == 3)
    released.set()
    got = [await each for each in asked]
    assert sorted(each.answer_headers["x-cache"] for each in got) == ["coalesced", "coalesced", "miss"]
    assert (await gateway.ask()).answer_headers["x-cache"] == "miss"
    assert len(gateway.bodies()) == 2


async def test_a_policy_of_a_later_version_stops_no_gateway(gateway: Gateway) -> None:
    _, new = await roll_out(gateway, policy=RolloutPolicy(max_ttft_seconds=1))
    await in_database(lambda: Deployment.objects.update(rollout={"of_a_later_version": True}))
    await until(lambda: endpoint_of(gateway, new).watch == Watch())
    assert (await gateway.ask()).status == 200


def endpoint_of(gateway: Gateway, replica_id: UUID) -> Endpoint:
    """Return a replica as the gateway knows it."""
    known = gateway.runtime.feed.snapshot.endpoints[MODEL]
    return next(each for each in known if each.replica_id == replica_id)


async def test_the_gateway_reports_the_replicas_that_it_routes_to_while_a_rollout_is_open(gateway: Gateway) -> None:
    old, new = (replica.id for replica in gateway.world.replicas)

    async def reported(expected: set[Any]) -> None:
        async with asyncio.timeout(30):
            while True:
                found = await in_database(lambda: list(GatewayLoad.objects.values_list("replicas", flat=True)))
                if {each for ids in found for each in ids} == expected:
                    return
                await asyncio.sleep(0.05)

    rollout, _ = await roll_out(gateway)
    await reported({old, new})
    assert await in_database(lambda: gateway_load.routed_by_all({old, new})) == {old, new}
    await in_database(lambda: rollouts.change(old, desired_state=Replica.Desired.STOPPED))
    await reported({new})
    await in_database(lambda: rollouts.finish(rollout))
    await reported(set())
