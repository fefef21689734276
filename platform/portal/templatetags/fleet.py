"""Filters that format the fleet for pages."""

from __future__ import annotations

from collections.abc import Mapping

from django import template
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext, gettext_noop

from portal.formats.numbers import milliseconds, seconds
from workers.fleet import lookup
from workers.fleet.status.replica_status import ReplicaStatus
from workers.fleet.status.slots import SlotStatus
from workers.fleet.verbs import VERBS
from workers.models import Level
from workers.serving import start_times

register = template.Library()

#: Name of a placeholder of each level.
LEVELS = {Level.H0.value: gettext_noop("H0 reserved slot"), Level.H2.value: "H2 zygote"}
#: Words for a start from each level: its name, when it is done, and while it continues.
STARTS = {
    Level.COLD.value: ("cold", gettext_noop("cold start in"), gettext_noop("starts cold")),
    Level.H0.value: (
        gettext_noop("reserved slot"),
        gettext_noop("on a reserved slot in"),
        gettext_noop("starts on a reserved slot"),
    ),
    Level.H2.value: ("promoted", gettext_noop("promoted in"), gettext_noop("is being promoted")),
}
#: The direction of each scale decision.
ARROWS = {"up": "▲", "wake": "▲", "down": "▼", "prepare": "▷", "failover": "⇥", "failback": "⇤", "release": "◁"}


@register.simple_tag(takes_context=True)
def part(context: Mapping[str, Mapping[str, str]], kind: str, name: object = "") -> str:
    """Return a part of the fleet that was rendered before (``portal.fleet.fragments``)."""
    return context["parts"][f"{kind}{name}"]


@register.simple_tag
def verb_effect(name: str) -> str:
    """Return what a verb of the fleet does, as its dialog says first."""
    return VERBS[name].effect


@register.filter
def level_name(level: str) -> str:
    """Name the level of a placeholder."""
    return gettext(LEVELS.get(level, level))


@register.filter
def start_name(level: str) -> str:
    """Name starts from a level."""
    return gettext(STARTS[level][0]) if level in STARTS else level


@register.filter
def start_words(replica: ReplicaStatus) -> str:
    """Describe a replica's start: its level, and how long it took or that it continues."""
    _, done, ongoing = STARTS.get(replica.start_level, ("", gettext_noop("up in"), gettext_noop("not started yet")))
    return (
        gettext(ongoing) if replica.startup_seconds is None else f"{gettext(done)} {seconds(replica.startup_seconds)}"
    )


@register.filter
def start_estimate(expected_seconds: float | None) -> str:
    """Describe how soon a replica started from a placeholder serves, as commands do."""
    return start_times.start_time_text(expected_seconds)


@register.filter
def reading_words(slot: SlotStatus) -> str:
    """Describe what a slot's device does, as far as it says: ``93 % busy, 71.2 GB of 80.0 GB, 64 °C, 610 W``."""
    reading = slot.reading
    if reading is None:
        return ""
    parts = []
    if reading.utilisation_percent is not None:
        parts.append(f"{reading.utilisation_percent} % busy")
    if reading.used_bytes is not None:
        total = f" of {filesizeformat(slot.memory_bytes)}" if slot.memory_bytes else ""
        parts.append(f"{filesizeformat(reading.used_bytes)}{total}")
    if reading.temperature_celsius is not None:
        parts.append(f"{reading.temperature_celsius} °C")
    if reading.power_watts is not None:
        parts.append(f"{reading.power_watts:.0f} W")
    return ", ".join(parts)


@register.filter
def times_words(replica: ReplicaStatus) -> str:
    """Describe how fast a replica answered in the last minute; empty if it had no request."""
    if replica.ttft_seconds is None:
        return ""
    parts = [f"TTFT {milliseconds(replica.ttft_seconds * 1000)}"]
    if replica.tpot_seconds is not None:
        parts.append(f"TPOT {milliseconds(replica.tpot_seconds * 1000)}")
    if replica.prefix_hit_share is not None:
        parts.append(gettext("%(share)s of prompts cached") % {"share": whole_percent(replica.prefix_hit_share)})
    return ", ".join(parts)


@register.filter
def whole_percent(share: float) -> str:
    """Format a share of 0 to 1 as a whole percentage."""
    return f"{share * 100:.0f} %"


@register.filter
def end_of_id(identity: object) -> str:
    """Return the end of an id, which every verb accepts."""
    return lookup.short(identity)


@register.filter
def arrow(action: str) -> str:
    """Return an arrow for the direction of a scale decision."""
    return ARROWS.get(action, "·")


@register.filter
def words(name: str) -> str:
    """Format an identifier as words."""
    return name.replace("_", " ")
