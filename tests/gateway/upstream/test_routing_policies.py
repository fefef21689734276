"""Each deployment routes by its own policy, and a running gateway follows when an operator sets another one."""

from __future__ import annotations

from typing import Any

import pytest

from catalogue import registry, routing_policy
from catalogue.registry import Description
from tenants.models import Tenant
from tests.gateway.fixtures.tenants import HELLO, MODEL, Gateway, World, in_database, until
from tests.tenants.customers import OPERATOR
from workers.fleet import operations
from workers.models import Deployment, Replica
from workers.serving import endpoints

pytestmark = [pytest.mark.django_db(transaction=True)]

DOCUMENT = {"role": "system", "content": "what keeps a room warm " * 400}
ROUNDS = "rounds"


def deploy_in_turns(world: World) -> list[Replica]:
    """Deploy another model, whose requests take turns, on the same engines."""
    owner = Tenant.objects.get(slug="platform")
    described = Description(
        name=ROUNDS, source="/models/rounds", engine="simulated", context_length_tokens=2048, public=True
    )
    revision = registry.register(OPERATOR, owner, described)
    deployment = Deployment.objects.create(name=ROUNDS, revision=revision, desired_replicas=2, max_replicas=2)
    operations.route(OPERATOR, ROUNDS, routing_policy.parse("round-robin"))
    rows = [
        Replica(deployment=deployment, revision=revision, state="ready", host="127.0.0.1", port=port, generation=1)
        for port in Replica.objects.order_by("id").values_list("port", flat=True)
    ]
    endpoints.announce()
    return Replica.objects.bulk_create(rows)


async def routed(gateway: Gateway, model: str, count: int, text: str = "question") -> list[tuple[str, str]]:
    """Ask about the document so often; return the policy that decided and the replica each time."""
    found = []
    for number in range(count):
        question: dict[str, Any] = {
            **HELLO,
            "model": model,
            "messages": [DOCUMENT, {"role": "user", "content": f"{text} {number}"}],
        }
        headers = (await gateway.ask(question)).answer_headers
        _, _, policy = headers["x-route"].rpartition("; policy=")
        found.append((policy, headers["x-replica"]))
    return found


async def test_two_deployments_route_by_their_own_policies_and_a_change_reaches_a_running_gateway(
    gateway: Gateway,
) -> None:
    await in_database(lambda: deploy_in_turns(gateway.world))
    await until(lambda: ROUNDS in gateway.runtime.feed.snapshot.endpoints)
    by_cost, in_turns = await routed(gateway, MODEL, 6), await routed(gateway, ROUNDS, 6)
    assert {policy for policy, _ in by_cost} == {"expected-seconds"}
    assert len({replica for _, replica in by_cost}) == 1  # where the document is warm
    assert {policy for policy, _ in in_turns} == {"round-robin"}
    assert [replica for _, replica in in_turns] == [replica for _, replica in in_turns[:2]] * 3
    assert len({replica for _, replica in in_turns}) == 2

    policy = routing_policy.parse("round-robin")
    await in_database(lambda: operations.route(OPERATOR, MODEL, policy))
    await until(lambda: gateway.runtime.feed.snapshot.endpoints[MODEL][0].routing.policy == policy)
    changed = await routed(gateway, MODEL, 4, "another")
    assert [policy for policy, _ in changed] == ["round-robin"] * 4
    assert changed[0][1] == changed[2][1] != changed[1][1] == changed[3][1]
