"""Record who signed in, failed to, and signed out, each with the client's address."""

from __future__ import annotations

from typing import Literal

from tenants import audit
from tenants.audit import SYSTEM, Actor
from tenants.models import Tenant, User

Event = Literal["sign_in.succeeded", "sign_in.failed", "sign_in.ended", "password.changed", "password.reset"]


def record(user: User | None, event: Event, *, address: str, method: str = "") -> None:
    """Append an entry for each tenant of the person, which its members can read, and one without tenant for others.

    ``user`` None: nobody has the name that was typed. The name is not recorded, because people type passwords there.
    """
    # Whoever failed to sign in may be somebody else.
    actor = SYSTEM if user is None or event == "sign_in.failed" else _actor(user)
    target = ("user", "unknown" if user is None else user.id)
    after = (
        {"address": address} | ({"person": user.get_username()} if user else {}) | ({"by": method} if method else {})
    )
    for tenant in _tenants_of(user) or (None,):
        audit.record(actor, event, target, tenant=tenant, after=after)


def refuse(user: User, *, address: str, reason: str) -> None:
    """Append an entry for an operator with the right password who may not sign in with one."""
    after = {"address": address, "person": user.get_username(), "reason": reason}
    audit.record(SYSTEM, "sign_in.refused", ("user", user.id), after=after)


def _actor(user: User) -> Actor:
    return Actor(kind="user", name=user.get_username(), user=user)


def _tenants_of(user: User | None) -> list[Tenant]:
    if user is None or user.is_staff:
        return []
    return list(Tenant.objects.filter(memberships__user=user).exclude(state=Tenant.State.ARCHIVED).order_by("slug"))
