"""The errors of this package in words: what was wrong, and what is allowed."""

from __future__ import annotations

from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound, TenantError


def words(error: TenantError) -> str:
    """Return one sentence, with a full stop."""
    match error:
        case NotFound(kind, name):
            text = f"There is no {kind} {name!r}."
        case AlreadyExists(kind, name):
            text = f"The {kind} {name!r} already exists."
        case BadName(kind, name, allowed):
            text = f"{name!r} is not a valid {kind}: use {allowed}."
        case NotAllowed(kind, name, state):
            text = f"The {kind} {name!r} is {state}, so this cannot be done."
        case _:
            text = str(error)
    return text
