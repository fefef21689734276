"""The errors of this package in words: what was wrong, and what is allowed."""

from __future__ import annotations

from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound, SetByAbove, TenantError


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
        case SetByAbove(kind, "operator"):
            text = f"This {kind} was set by an operator. Only operators may change or remove it."
        case SetByAbove(kind, "owner"):
            text = f"This {kind} was set by an owner of the tenant. Only owners and operators may change or remove it."
        case SetByAbove(kind, _, key):
            text = (
                f"This {kind} was set by the key hk_{key}, above this key. Only that key, owners of the tenant and "
                "operators may change or remove it."
            )
        case _:
            text = str(error)
    return text
