"""What takes two people: one requests it, another one confirms it. The database compares their names too."""

from __future__ import annotations

from tenants.audit import Actor


def person(actor: Actor) -> str:
    """Return who acts: the name of a user, or the account and host of a shell, whatever command it runs."""
    return actor.name.partition(" by ")[0] if actor.kind == "system" else actor.name


def objection(actor: Actor, requested_by: str) -> str | None:
    """Return why this actor may not confirm what was requested; None for another person than the one who did."""
    who = person(actor)
    return f"{who} requested it; a second person confirms it" if who == requested_by else None
