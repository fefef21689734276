"""Create the hostile tenants: ``python -m benchmarks.hostile.seed`` in an instance's environment.

Prints a line of JSON: tenant → key. ``hostile-closed`` has a limit of zero requests, ``hostile-open`` has no limit.
"""

from __future__ import annotations

import json

import django


def main() -> None:
    """Create both."""
    django.setup()
    from tenants import registry
    from tenants.audit import SYSTEM
    from tenants.keys import keys
    from tenants.models import Project
    from tenants.policy.limits import LimitValues, set_limit
    from tenants.policy.policy_target import PolicyTarget

    found = {}
    for slug in ("hostile-closed", "hostile-open"):
        tenant = registry.create_tenant(SYSTEM, slug=slug, name=slug, policy=registry.Policy(cache_mode="all"))
        if slug == "hostile-closed":
            set_limit(SYSTEM, PolicyTarget(tenant=tenant), LimitValues(requests_per_minute=0))
        found[slug] = keys.issue(SYSTEM, Project.objects.get(tenant=tenant), name="bench").secret
    print(json.dumps(found))


if __name__ == "__main__":
    main()
