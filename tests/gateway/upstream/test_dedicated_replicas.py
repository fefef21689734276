"""A model that is private to a tenant has replicas of its own, which no request of another tenant reaches."""

from __future__ import annotations

import pytest

from catalogue import administration, registry
from catalogue.registry import Description
from tenants.ids import TenantId
from tenants.keys import keys
from tenants.models import Tenant
from tests.gateway.fixtures.tenants import HELLO, MODEL, Gateway, World, in_database, stop_replica, until
from tests.tenants.customers import OPERATOR
from workers.models import Deployment, Replica
from workers.serving import endpoints

pytestmark = [pytest.mark.django_db(transaction=True)]

OWN = "demo-acme"
ALIAS = "acme-default"
ROUNDS = 6


def dedicate(world: World) -> None:
    """Deploy the model once more, for acme alone, on the second engine, which leaves the shared deployment."""
    port = Replica.objects.values_list("port", flat=True).get(id=world.replicas[1].id)
    stop_replica(world.replicas[1].id)
    described = Description(name=OWN, source="/models/demo", engine="simulated", context_length_tokens=2048)
    revision = registry.register(OPERATOR, Tenant.objects.get(slug="platform"), described)
    administration.set_visibility(OPERATOR, OWN, "private", ["acme"])
    administration.set_aliases(OPERATOR, OWN, [ALIAS])
    deployment = Deployment.objects.create(name=OWN, revision=revision, desired_replicas=1, max_replicas=1)
    Replica.objects.create(
        deployment=deployment, revision=revision, state="ready", host="127.0.0.1", port=port, generation=1
    )
    endpoints.announce()


async def test_only_its_tenants_requests_reach_a_private_models_replicas(gateway: Gateway) -> None:
    world = gateway.world
    shared, own = gateway.engines
    await in_database(lambda: dedicate(world))
    feed = gateway.runtime.feed
    await until(lambda: OWN in feed.snapshot.endpoints and len(feed.snapshot.endpoints[MODEL]) == 1)
    await until(lambda: feed.snapshot.catalogue.find(TenantId(world.acme.tenant.id), ALIAS) is not None)

    headers = {"x-session-id": "one", "cache-control": "no-store"}
    for name in (OWN, ALIAS):
        refused = await gateway.ask({**HELLO, "model": name}, key=world.globex.secret, headers=headers)
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    for _ in range(ROUNDS):
        assert (await gateway.ask(key=world.globex.secret, headers=headers)).status == 200
    assert (len(shared.bodies), own.bodies) == (ROUNDS, [])

    only_own = await in_database(lambda: keys.issue(OPERATOR, world.acme.project, name="o", allowed_models=(OWN,)))
    for name in (OWN, ALIAS) * (ROUNDS // 2):
        answered = await gateway.ask({**HELLO, "model": name}, key=only_own.secret, headers=headers)
        assert answered.status == 200
    kept = await gateway.ask(key=only_own.secret, headers=headers)
    assert (kept.status, kept.error["code"]) == (403, "model_not_allowed")
    assert (len(shared.bodies), len(own.bodies)) == (ROUNDS, ROUNDS)
