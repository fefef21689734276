"""The live parts of pages as HTML that htmx puts in place by id (out-of-band swaps)."""

from __future__ import annotations

from django.template.loader import render_to_string

from portal.fleet import snapshot as fleet
from portal.fleet.snapshot import Fleet


def fleet_fragments(snapshot: Fleet) -> dict[str, str]:
    """Return the HTML of each deployment, pool and node, and of the decisions, by element id."""
    parts: dict[str, str] = {
        f"deployment-{deployment.name}": render_to_string(
            "portal/parts/deployment.html", {"deployment": deployment, "swap": True}
        )
        for deployment in snapshot.deployments
    }
    parts["homeless"] = render_to_string("portal/parts/homeless.html", {"fleet": snapshot, "swap": True})
    if snapshot.deployments:
        parts["decisions"] = render_to_string("portal/parts/decisions.html", {"fleet": snapshot, "swap": True})
    for pool in snapshot.pools:
        parts[f"pool-{pool.name}"] = render_to_string("portal/parts/pool.html", {"pool": pool, "swap": True})
        for node in pool.nodes:
            context = {"node": node, "pool": pool, "swap": True}
            parts[f"node-{node.id}"] = render_to_string("portal/parts/node.html", context)
    return parts


def fleet_changes(sent: dict[str, str] | None) -> tuple[str, dict[str, str]]:
    """Return the HTML to push to a page that shows ``sent`` (None: nothing is known of it), and what it shows then.

    The HTML is empty when nothing changed.
    """
    snapshot = fleet.read()
    parts = fleet_fragments(snapshot)
    if sent is not None and sent.keys() != parts.keys():
        return render_to_string("portal/parts/fleet.html", {"fleet": snapshot, "swap": True}), parts
    known = sent or {}
    return "\n".join(html for name, html in parts.items() if known.get(name) != html), parts
