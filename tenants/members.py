"""Members of tenants and their roles. Every change is audited."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction

from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.keys import playground
from tenants.models import Membership, Tenant, User


def of(tenant: Tenant) -> list[Membership]:
    """Return the members with their users, sorted by name."""
    return list(Membership.objects.filter(tenant=tenant).select_related("user").order_by("user__username"))


@transaction.atomic
def put(actor: Actor, tenant: Tenant, username: str, role: str) -> Membership:
    """Give a person a role, replacing the one they had; effective from their next page on.

    An unknown person is created, and cannot sign in without a password. Raises BadName, and NotAllowed for an archived
    tenant.
    """
    if role not in Membership.Role.values:
        raise BadName("role", role, " | ".join(Membership.Role.values))
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    if locked.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.slug, locked.state)
    user = User.objects.filter(username=username).first() or _create(username)
    found = Membership.objects.filter(user=user, tenant=locked).first()
    before = found.role if found is not None else None
    if found is not None and before == role:
        return found
    member, _ = Membership.objects.update_or_create(user=user, tenant=locked, defaults={"role": role})
    _record(actor, "member.set", member, before=before, after=role)
    playground.revoke_of(actor, user, locked)  # the next one asks for the rights of the new role
    return member


@transaction.atomic
def remove(actor: Actor, tenant: Tenant, username: str) -> None:
    """Remove a person's membership and revoke their key of the playground; the user and other memberships stay.

    Raises NotFound.
    """
    locked = Membership.objects.select_for_update(of=("self",)).select_related("user", "tenant")
    member = locked.filter(tenant=tenant, user__username=username).first()
    if member is None:
        raise NotFound("member", username)
    _record(actor, "member.removed", member, before=member.role, after=None)
    playground.revoke_of(actor, member.user, member.tenant)
    member.delete()


def _create(username: str) -> User:
    try:
        User.username_validator(username)
    except ValidationError:
        raise BadName("person", username, "letters, digits and @ . + - _") from None
    if len(username) > 150:
        raise BadName("person", username, "at most 150 characters")
    return User.objects.create_user(username)


def _record(actor: Actor, action: str, member: Membership, *, before: str | None, after: str | None) -> None:
    def described(role: str | None) -> dict[str, str] | None:
        return None if role is None else {"person": member.user.username, "role": role}

    target = ("user", member.user_id)
    audit.record(actor, action, target, tenant=member.tenant, before=described(before), after=described(after))
