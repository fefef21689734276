"""What live pages show. Each topic is read once for all its viewers, however many processes serve them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.template.loader import render_to_string

from portal.fleet.fragments import fleet_fragments
from workers.fleet.status import inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One reading of a topic, as HTML that htmx swaps in by element id (out-of-band swaps)."""

    #: Replaces everything, for a page that was drawn at another moment.
    whole: str
    #: HTML by element id; other ids than before mean that ``whole`` is to be sent.
    parts: dict[str, str]

    def since(self, before: Shown | None) -> str:
        """Return the HTML that brings a page from ``before`` to this; empty if nothing changed."""
        if before is None or before.parts.keys() != self.parts.keys():
            return self.whole
        return "\n".join(html for name, html in self.parts.items() if before.parts[name] != html)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What is read, and how often."""

    #: Letters, digits, hyphens and dots: part of the names of a Redis key and of a channel group.
    name: str
    seconds: float
    read: Callable[[], Shown]


def _read_fleet() -> Shown:
    fleet = inventory.read()
    whole = render_to_string("portal/parts/fleet.html", {"fleet": fleet, "swap": True})
    return Shown(whole=whole, parts=fleet_fragments(fleet))


FLEET = Topic(name="fleet", seconds=1.0, read=_read_fleet)
