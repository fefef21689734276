"""How the fleet is written on pages."""

from __future__ import annotations

from django import template

from portal.formats.numbers import seconds
from workers.fleet import lookup
from workers.fleet.inventory import ReplicaStatus
from workers.models import Level
from workers.serving import start_times

register = template.Library()

#: What a placeholder of each level is.
LEVELS = {Level.H0.value: "H0 held slot", Level.H2.value: "H2 zygote"}
#: How a start from each level is called, in general, when done and while it goes on.
STARTS = {
    Level.COLD.value: ("cold", "cold start in", "starts cold"),
    Level.H0.value: ("held slot", "on a held slot in", "starts on a held slot"),
    Level.H2.value: ("promoted", "promoted in", "is being promoted"),
}
#: The direction of each scale decision.
ARROWS = {"up": "▲", "wake": "▲", "down": "▼", "prepare": "▷", "release": "◁"}


@register.filter
def level_name(level: str) -> str:
    """Write how warm a placeholder is."""
    return LEVELS.get(level, level)


@register.filter
def start_name(level: str) -> str:
    """Name starts from a level."""
    return STARTS[level][0] if level in STARTS else level


@register.filter
def start_words(replica: ReplicaStatus) -> str:
    """Say from how warm a replica was started and how long that took, or that it still goes on."""
    _, done, going_on = STARTS.get(replica.start_level, ("", "up in", "not started yet"))
    return going_on if replica.startup_seconds is None else f"{done} {seconds(replica.startup_seconds)}"


@register.filter
def promise(expected_seconds: float | None) -> str:
    """Say when a replica started from a placeholder would answer, in the words of the command line."""
    return start_times.start_time_text(expected_seconds)


@register.filter
def whole_percent(share: float) -> str:
    """Write a share of 0 to 1 as a whole number of per cent."""
    return f"{share * 100:.0f} %"


@register.filter
def end_of_id(identity: object) -> str:
    """Write the end of an id, which every verb takes for the whole."""
    return lookup.short(identity)


@register.filter
def arrow(action: str) -> str:
    """Draw the direction of a scale decision."""
    return ARROWS.get(action, "·")


@register.filter
def words(name: str) -> str:
    """Write a name of the code as words."""
    return name.replace("_", " ")
