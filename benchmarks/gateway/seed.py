"""Give the Hearth under test what it needs to serve: tenants, keys, a model with a price, and a ready replica.

Run as ``python -m benchmarks.gateway.seed PORT`` in the instance's environment; PORT is the mock upstream's. Prints
one line of JSON: tenant → key. No worker runs beside it, so the replica row stays as it is written here.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import django
from django.db import transaction

from benchmarks.gateway.upstream import MODEL

#: High enough never to refuse, so that each is taken from Redis for every request all the same.
REQUESTS_PER_MINUTE = 60_000_000
TOKENS_PER_MINUTE = 10**12
CONCURRENT_REQUESTS = 1_000_000
#: Bodies of 100 KB are some 25,000 tokens.
CONTEXT_TOKENS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a tenant has switched on. ``limits``: a hard budget with them."""

    limits: bool
    cache: bool
    quota_bytes: int = 256 << 20


#: The first has everything, the next two are rungs of the ladder, and the last one asks for more than it may keep.
TENANTS = {
    "full": Kind(limits=True, cache=True),
    "limited": Kind(limits=True, cache=False),
    "open": Kind(limits=False, cache=False),
    "small": Kind(limits=False, cache=True, quota_bytes=4 << 20),
}


@transaction.atomic
def seed(upstream_port: int) -> dict[str, str]:
    """Create it all and return the text of each tenant's key."""
    found = {slug: _tenant(slug, kind) for slug, kind in TENANTS.items()}
    _model("full", upstream_port)
    return found


def _tenant(slug: str, kind: Kind) -> str:
    from tenants import registry
    from tenants.audit import SYSTEM
    from tenants.keys import keys
    from tenants.models import Project
    from tenants.policy import budgets
    from tenants.policy.limits import LimitValues, set_limit
    from tenants.policy.policy_target import PolicyTarget

    policy = registry.Policy(cache_mode="all" if kind.cache else "off", cache_quota_bytes=kind.quota_bytes)
    tenant = registry.create_tenant(SYSTEM, slug=slug, name=slug, policy=policy)
    if kind.limits:
        figures = LimitValues(
            requests_per_minute=REQUESTS_PER_MINUTE,
            tokens_per_minute=TOKENS_PER_MINUTE,
            concurrent_requests=CONCURRENT_REQUESTS,
        )
        set_limit(SYSTEM, PolicyTarget(tenant=tenant), figures)
        budgets.create(SYSTEM, PolicyTarget(tenant=tenant), budgets.BudgetTerms(limit_pico=budgets.LARGEST_LIMIT_PICO))
    project = Project.objects.get(tenant=tenant, slug="default")
    return keys.issue(SYSTEM, project, name="bench").secret


def _model(owner: str, upstream_port: int) -> None:
    from billing.pricing import prices
    from catalogue import registry as catalogue
    from tenants.audit import SYSTEM
    from tenants.models import Tenant
    from workers.fleet import deployments
    from workers.models import Replica
    from workers.serving import endpoints

    described = catalogue.Description(
        name=MODEL, source=MODEL, engine="simulated", context_length_tokens=CONTEXT_TOKENS, public=True
    )
    revision = catalogue.register(SYSTEM, Tenant.objects.get(slug=owner), described)
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


if __name__ == "__main__":
    django.setup()
    print(json.dumps(seed(int(sys.argv[1]))))
