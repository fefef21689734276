"""The live parts of the fleet page as HTML that htmx swaps in by element id (out-of-band swaps)."""

from __future__ import annotations

from django.template.loader import render_to_string

from workers.fleet.status.inventory import Fleet


def fleet_fragments(fleet: Fleet) -> dict[str, str]:
    """Return the HTML of the parts that change, by element id."""
    parts: dict[str, str] = {
        f"deployment-{deployment.name}": render_to_string(
            "portal/parts/deployment.html", {"deployment": deployment, "swap": True}
        )
        for deployment in fleet.deployments
    }
    parts["unplaced"] = render_to_string("portal/parts/unplaced.html", {"fleet": fleet, "swap": True})
    if fleet.deployments:
        parts["decisions"] = render_to_string("portal/parts/decisions.html", {"fleet": fleet, "swap": True})
    for pool in fleet.pools:
        parts[f"pool-{pool.name}"] = render_to_string("portal/parts/pool.html", {"pool": pool, "swap": True})
        for node in pool.nodes:
            context = {"node": node, "pool": pool, "swap": True}
            parts[f"node-{node.id}"] = render_to_string("portal/parts/node.html", context)
    return parts
