"""Members of tenants and their roles. Every change is audited."""

from __future__ import annotations

from collections.abc import Collection

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.keys import playground
from tenants.models import Invitation, Membership, Project, Tenant, User

LAST_OWNER = "the last owner"
#: What members with a role may not invite to, as a filter of invitations; other roles invite to nothing.
NOT_TO_INVITE = {Membership.Role.OWNER.value: Q(pk__in=()), Membership.Role.ADMIN.value: Q(role=Membership.Role.OWNER)}


def of(tenant: Tenant) -> list[Membership]:
    """Return the members with their users, sorted by name."""
    return list(Membership.objects.filter(tenant=tenant).select_related("user").order_by("user__username"))


@transaction.atomic
def put(actor: Actor, tenant: Tenant, username: str, role: str) -> Membership:
    """Give a person a role, replacing the one they had; effective from their next page on.

    An unknown person is created, and cannot sign in without a password. Raises BadName, and NotAllowed for an archived
    tenant, for its last owner, and for somebody of another tenant's sign-in provider.
    """
    if role not in Membership.Role.values:
        raise BadName("role", role, " | ".join(Membership.Role.values))
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    if locked.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.slug, locked.state)
    user = User.objects.filter(username=username).first() or create_person(username)
    _require_no_other_provider(user, locked)
    found = Membership.objects.filter(user=user, tenant=locked).first()
    before = found.role if found is not None else None
    if found is not None and before == role:
        return found
    if found is not None:
        _require_other_owner(found)
        _revoke_invitations(found, role)
    member, _ = Membership.objects.update_or_create(user=user, tenant=locked, defaults={"role": role})
    _record(actor, "member.set", member, before=before, after=role)
    playground.revoke_of(actor, user, locked)  # the next one asks for the rights of the new role
    return member


@transaction.atomic
def remove(actor: Actor, tenant: Tenant, username: str) -> None:
    """Remove a person's membership and revoke their key of the playground; the user and their other keys stay.

    Raises NotFound, and NotAllowed for the last owner.
    """
    Tenant.objects.select_for_update().get(id=tenant.id)
    member = one(tenant, username)
    _require_other_owner(member)
    _revoke_invitations(member, None)
    _record(actor, "member.removed", member, before=member.role, after=None)
    playground.revoke_of(actor, member.user, member.tenant)
    member.delete()


def roles_of(user: User) -> list[Membership]:
    """Return a person's memberships of tenants that are not archived, with the tenants, by slug."""
    own = Membership.objects.filter(user=user).exclude(tenant__state=Tenant.State.ARCHIVED)
    return list(own.select_related("tenant").order_by("tenant__slug"))


@transaction.atomic
def change_profile(
    actor: Actor, user: User, *, first_name: str, last_name: str, time_zone: str = "", language: str = ""
) -> None:
    """Change a person's name, time zone and language. Idempotent.

    The audit log, kept for longer than a person, has no name.
    """
    wanted = {"first_name": first_name, "last_name": last_name, "time_zone": time_zone, "language": language}
    if all(getattr(user, field) == value for field, value in wanted.items()):
        return
    User.objects.filter(id=user.id).update(**wanted)
    audit.record(actor, "profile.changed", ("user", user.id), after={"person": user.username})


@transaction.atomic
def confine(actor: Actor, tenant: Tenant, username: str, projects: Collection[Project]) -> Membership:
    """Let a developer make and change keys of these projects only; without projects, of all. Raises NotFound."""
    Tenant.objects.select_for_update().get(id=tenant.id)
    member = one(tenant, username)
    ids = sorted(project.id for project in projects)
    if sorted(member.project_ids) == ids:
        return member
    member.project_ids = ids
    member.save(update_fields=["project_ids"])
    after = {"person": username, "projects": sorted(project.slug for project in projects)}
    playground.revoke_of(actor, member.user, member.tenant)
    audit.record(actor, "member.confined", ("user", member.user_id), tenant=tenant, after=after)
    return member


def one(tenant: Tenant, username: str) -> Membership:
    """Return a member by sign-in name. Raises NotFound."""
    found = Membership.objects.filter(tenant=tenant, user__username=username).select_related("user", "tenant").first()
    if found is None:
        raise NotFound("member", username)
    return found


def _require_no_other_provider(user: User, tenant: Tenant) -> None:
    """Raise NotAllowed if another tenant's sign-in provider says who this is: it could sign in here as this person."""
    if hasattr(user, "provider_member") and user.provider_member.tenant_id != tenant.id:
        raise NotAllowed("person", user.username, "of another tenant's sign-in provider")


def _require_other_owner(member: Membership) -> None:
    """Raise NotAllowed if this is the tenant's last owner. The tenant's row is locked."""
    owners = Membership.objects.filter(tenant=member.tenant_id, role=Membership.Role.OWNER, user__is_active=True)
    if member.role == Membership.Role.OWNER and not owners.exclude(id=member.id).exists():
        raise NotAllowed("member", member.user.username, LAST_OWNER)


def _revoke_invitations(member: Membership, role: str | None) -> None:
    """Revoke what somebody has invited to who may not any more, with a new role or none."""
    if member.role in NOT_TO_INVITE:
        own = Invitation.objects.filter(tenant=member.tenant_id, created_by=member.user.username)
        refused = own.filter(NOT_TO_INVITE.get(role or "", Q()), accepted_at=None, revoked_at=None)
        refused.update(revoked_at=timezone.now())


def create_person(username: str) -> User:
    """Create a person who cannot sign in without a password. Raises BadName."""
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
