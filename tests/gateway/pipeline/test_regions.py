"""A tenant's requests run only on replicas in its regions, on every path, or get 503 ``region_unavailable``.

Its model has a replica in each of two regions. Acme may use the first one alone, globex both.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import hearth.celery  # noqa: F401 - whoever sends a task needs the app configured first
from gateway import tasks
from gateway.errors import GatewayError
from gateway.upstream.routing import rehearsal
from tenants import registry
from tenants.isolation import keyspace
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.scripted_app import hang_up, hello, silence
from tests.gateway.fixtures.tenants import DOORS, HELLO, STREAMED, Gateway, in_database, until
from tests.tenants.customers import OPERATOR
from workers.models import Deployment, DeploymentPool, GatewayLoad, Node, Pool, Replica
from workers.serving import endpoints

pytestmark = [pytest.mark.django_db(transaction=True)]

either_way = pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
EU, US = "eu-west", "us-east"
ROUNDS = 6
SESSION = {"x-session-id": "one", "cache-control": "no-store"}


def spread(gateway: Gateway) -> None:
    """Put each replica on a node of its own region, and let acme use the first region alone."""
    for sequence, (replica, region) in enumerate(zip(gateway.world.replicas, (EU, US), strict=True)):
        pool = Pool.objects.create(name=region, kind="simulated", region=region)
        DeploymentPool.objects.create(deployment=gateway.world.deployment, pool=pool, sequence=sequence)
        Replica.objects.filter(id=replica.id).update(node=Node.objects.create(name=f"n-{region}", pool=pool))
    endpoints.announce()


async def allow(gateway: Gateway, *regions: str) -> None:
    """Set acme's regions, and wait until the gateway has read them."""
    await in_database(lambda: registry.set_regions(OPERATOR, gateway.world.acme.tenant, regions))
    await until(lambda: gateway.caller().allowed_regions == set(regions))


def known(gateway: Gateway) -> set[str]:
    """Return the regions of the replicas that the gateway knows."""
    return {each.region for each in gateway.runtime.feed.snapshot.endpoints.get("demo", ())}


def offered(gateway: Gateway) -> set[str]:
    """Return the regions in which the gateway knows the model to be deployed."""
    return set().union(*(each.regions for each in gateway.runtime.feed.snapshot.deployments))


@pytest.fixture(autouse=True)
async def two_regions(gateway: Gateway) -> None:
    """Spread the model over both regions."""
    await in_database(lambda: spread(gateway))
    await allow(gateway, EU)
    await until(lambda: known(gateway) == offered(gateway) == {EU, US})


async def lose_eu(gateway: Gateway) -> None:
    """Let the replica in acme's region stop."""
    await in_database(lambda: tenants.stop_replica(gateway.world.replicas[0].id))
    await until(lambda: known(gateway) == {US})


async def undeploy_eu(gateway: Gateway) -> None:
    """Take the model out of acme's region."""
    await lose_eu(gateway)
    await in_database(lambda: DeploymentPool.objects.filter(pool__name=EU).delete())
    await until(lambda: offered(gateway) == {US})


async def until_reported(regions: set[str]) -> None:
    """Wait until the gateway has reported tokens of requests for these regions alone, and no other ones."""

    def reported() -> set[str]:
        rows = GatewayLoad.objects.values_list("regional_tokens", flat=True)
        return {name for tokens in rows for name in tokens}

    for _ in range(600):
        if await in_database(reported) == regions:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError


def told(exchange: Any) -> tuple[int, str]:
    return exchange.status, exchange.error["code"]


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
@either_way
async def test_requests_sessions_and_all_stay_in_their_region(gateway: Gateway, body: Any) -> None:
    world, (eu, us) = gateway.world, gateway.engines
    for number in range(ROUNDS):
        both = [gateway.ask({**body, "seed": number}, headers=SESSION, key=key) for key in (None, world.globex.secret)]
        assert [each.status for each in await asyncio.gather(*both)] == [200, 200]
    acmes = keyspace.cache_salt(gateway.caller(), "demo")
    assert [each["cache_salt"] for each in eu.bodies].count(acmes) == ROUNDS
    assert acmes not in {each["cache_salt"] for each in us.bodies}
    await allow(gateway)
    await lose_eu(gateway)
    assert (await gateway.ask(body, headers=SESSION)).status == 200


async def test_a_session_leaves_a_home_that_its_tenant_may_use_no_more(gateway: Gateway) -> None:
    await gateway.set_policy(session_affinity="strict")
    for regions, engine in ((US, gateway.engines[1]), (EU, gateway.engines[0])):
        await allow(gateway, regions)
        before = len(engine.bodies)
        for _ in range(2):
            assert (await gateway.ask(headers=SESSION)).status == 200
        assert len(engine.bodies) == before + 2


@either_way
async def test_a_retry_stays_in_the_region(gateway: Gateway, body: Any) -> None:
    eu, us = gateway.engines
    eu.say, us.say = hang_up, hello
    await gateway.set_policy(queue_seconds=0)
    refused = await gateway.ask(body)
    assert refused.status in {502, 503}
    assert us.bodies == []


@either_way
async def test_a_model_that_is_not_deployed_there_is_refused_at_once(gateway: Gateway, body: Any) -> None:
    await undeploy_eu(gateway)
    refused = await gateway.ask(body)
    assert told(refused) == (503, "region_unavailable")
    assert "does not run in the regions that this tenant may use (eu-west)" in refused.error["message"]
    assert refused.answer_headers["x-should-retry"] == "false"
    assert (await gateway.ask(body, key=gateway.world.globex.secret)).status == 200
    assert len(gateway.engines[1].bodies) == 1


async def test_a_request_waits_for_a_replica_there_and_no_longer_than_it_may(gateway: Gateway) -> None:
    await lose_eu(gateway)
    waiting = asyncio.ensure_future(gateway.ask())
    await until(lambda: gateway.held() == 1)
    await until_reported({EU})
    await in_database(lambda: tenants.place(gateway.world, [engine.port for engine in gateway.engines]))
    assert (await waiting).status == 200
    assert gateway.engines[1].bodies == []
    await until_reported(set())

    await lose_eu(gateway)
    await gateway.set_policy(queue_seconds=1)
    late = await gateway.ask({**HELLO, "seed": 1})
    assert told(late) == (503, "region_unavailable")
    assert int(late.answer_headers["retry-after"]) > 0
    assert gateway.engines[1].bodies == []


async def test_one_that_waits_for_its_full_region_holds_up_nobody_else(gateway: Gateway) -> None:
    eu, us = gateway.engines
    await in_database(lambda: Replica.objects.update(max_requests=1))
    await in_database(endpoints.announce)
    await until(lambda: {each.max_requests for each in gateway.runtime.feed.snapshot.endpoints["demo"]} == {1})
    eu.say = silence
    first = asyncio.ensure_future(gateway.ask({**HELLO, "seed": 1}))
    await until(lambda: len(eu.bodies) == 1)
    behind = asyncio.ensure_future(gateway.ask({**HELLO, "seed": 2}))
    await until(lambda: gateway.held() == 1)
    for number in range(3):
        answered = await gateway.ask({**HELLO, "seed": number}, key=gateway.world.globex.secret)
        assert answered.status == 200
    assert (len(eu.bodies), len(us.bodies), gateway.held()) == (1, 3, 1)
    for each in (first, behind):
        each.cancel()
    await asyncio.gather(first, behind, return_exceptions=True)


async def test_a_deferred_request_stays_there_too(gateway: Gateway) -> None:
    await undeploy_eu(gateway)
    try:
        accepted = await gateway.ask(headers={"prefer": "respond-async"})
        assert accepted.status == 202
        request_id = accepted.json["id"]
        await in_database(lambda: tasks.run_deferred(request_id))
        found = await gateway.ask(method="GET", path=f"/v1/requests/{request_id}")
        assert told(found) == (503, "region_unavailable")
    finally:
        await asyncio.to_thread(tasks.background.close)
    assert gateway.engines[1].bodies == []


async def test_the_operators_question_where_a_request_would_go_stays_there_too(gateway: Gateway) -> None:
    body, key = gateway.exchange().pieces[0], gateway.world.acme.key.public_id
    where = await in_database(lambda: rehearsal.rehearse(body, "/v1/chat/completions", key))
    assert where.decision.replica_id == gateway.world.replicas[0].id
    await lose_eu(gateway)
    with pytest.raises(GatewayError) as refused:
        await in_database(lambda: rehearsal.rehearse(body, "/v1/chat/completions", key))
    assert refused.value.code == "region_unavailable"


async def test_regions_of_a_deployment_are_those_of_its_pools(gateway: Gateway) -> None:
    await in_database(lambda: Deployment.objects.create(name="bare", revision=gateway.world.revision))
    await until(lambda: {each.name for each in gateway.runtime.feed.snapshot.deployments} == {"demo", "bare"})
    found = {each.name: each.regions for each in gateway.runtime.feed.snapshot.deployments}
    assert found == {"demo": {EU, US}, "bare": frozenset()}
