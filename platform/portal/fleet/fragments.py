"""The live parts of the fleet page as HTML that htmx swaps in by element id (out-of-band swaps)."""

from __future__ import annotations

from collections.abc import Mapping

from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from workers.fleet.status.inventory import Fleet

_SWAP = ' hx-swap-oob="true"'


def within(parts: Mapping[str, str]) -> dict[str, SafeString]:
    """Return parts as they stand within ``parts/fleet.html``, which is made of them."""
    return {name: mark_safe(html.replace(_SWAP, "", 1)) for name, html in parts.items()}


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
