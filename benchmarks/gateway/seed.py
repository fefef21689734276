"""Give the Hearth under test what it needs to serve: a tenant, a key, a model with a price, and a ready replica.

Run as ``python -m benchmarks.gateway.seed PORT`` in the instance's environment; PORT is the mock upstream's. Prints
the key. No worker runs beside it, so the replica row stays as it is written here.
"""

from __future__ import annotations

import sys

import django
from django.db import transaction

from benchmarks.gateway.upstream import MODEL

#: High enough never to refuse, so that the limit is taken from Redis for every request all the same.
REQUESTS_PER_MINUTE = 60_000_000


@transaction.atomic
def seed(upstream_port: int) -> str:
    """Create it all and return the text of the key."""
    from billing import prices
    from catalogue import registry as catalogue
    from tenants import keys, registry
    from tenants.audit import SYSTEM
    from tenants.models import Project
    from workers import deployments, endpoints
    from workers.models import Replica

    policy = registry.Policy(cache_mode="all", requests_per_minute=REQUESTS_PER_MINUTE)
    tenant = registry.create_tenant(SYSTEM, slug="bench", name="Bench", policy=policy)
    described = catalogue.Description(name=MODEL, source=MODEL, engine="simulated", context_length_tokens=8192)
    revision = catalogue.register(SYSTEM, tenant, described)
    prices.ensure_demo_prices(SYSTEM, MODEL)
    pool = deployments.ensure_pool(SYSTEM, name="bench", kind="simulated")
    node = deployments.ensure_node(SYSTEM, pool=pool, name="bench")
    deployment = deployments.create(SYSTEM, name="bench", revision=revision, pools=[pool], replicas=1)
    Replica.objects.create(
        deployment=deployment,
        revision=revision,
        node=node,
        state=Replica.State.READY,
        host="127.0.0.1",
        port=upstream_port,
        generation=1,
    )
    endpoints.announce()
    project = Project.objects.get(tenant=tenant, slug="default")
    return keys.issue(SYSTEM, project, name="bench").secret


if __name__ == "__main__":
    django.setup()
    print(seed(int(sys.argv[1])))
