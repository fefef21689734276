"""The errors of this package in words: what was wrong, and what is allowed."""

from __future__ import annotations

from tenants.errors import AlreadyExists, BadName, InvitationRefused, NotAllowed, NotFound, SetByAbove, TenantError

#: What can be done about an archived thing.
_INSTEAD_OF_ARCHIVED = {
    "project": "Restore the project first.",
    "tenant": "An archived tenant cannot be restored: create another one. Its usage and statements stay readable.",
    "model": "Restore the model first.",
    "budget": "Set a new budget.",
}

_INVITATIONS = {
    "unknown": "This link invites nobody: it is not complete, or was never made. Open the whole link as you got it.",
    "accepted": "This invitation was used already. Sign in if it was you; otherwise ask for a new one.",
    "revoked": "This invitation was taken back. Ask the person who invited you for a new one.",
    "expired": "This invitation is older than a week. Ask the person who invited you for a new one.",
    "archived": "The tenant of this invitation is archived, so nobody can join it.",
}


def next_step(error: NotAllowed) -> str:
    """Return what to do about the state that forbids a change; empty where the error says it."""
    if error.state.startswith("the last "):
        return "Give another person that role first."
    if error.state.startswith("revoked by somebody else"):
        return "Ask whoever may revoke keys here, or try again later."
    return _INSTEAD_OF_ARCHIVED.get(error.kind, "") if error.state == "archived" else ""


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
            text = f"The {kind} {name!r} is {state}, so this cannot be done. {next_step(error)}".strip()
        case InvitationRefused("member", role):
            text = f"You already have the role {role!r} here. The invitation is still open for somebody else."
        case InvitationRefused(reason):
            text = _INVITATIONS[reason]
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
