"""Operators and their roles. Every change is audited, and one admin always remains."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants import audit, members
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.ids import PLATFORM_SLUG
from tenants.models import Invitation, Membership, OperatorToken, Tenant, User

LAST_ADMIN = "the last operator with the role admin"
BREAK_GLASS = "the break-glass operator while operators sign in through their provider only: change that first"


def every() -> QuerySet[User]:
    """Return the operators, by name."""
    return User.objects.filter(is_staff=True).order_by("username")


def existing(username: str) -> User:
    """Return an operator. Raises NotFound."""
    user = every().filter(username=username).first()
    if user is None:
        raise NotFound("operator", username)
    return user


def has_provider() -> bool:
    """Return whether operators can sign in through a provider: that of the tenant ``platform``."""
    found = Tenant.objects.filter(slug=PLATFORM_SLUG, state=Tenant.State.ACTIVE, sign_in_provider__isnull=False)
    return found.exists()


def sign_in_through_provider_only() -> bool:
    """Return whether no operator signs in with a password or a passkey, except the break-glass one."""
    return _provider_only().exists() and has_provider()


def locked_admins() -> set[int]:
    """Lock the admins and return their ids, so that two of them cannot remove each other at once."""
    admins = User.objects.filter(is_staff=True, is_active=True, operator_role=User.OperatorRole.ADMIN)
    return set(admins.order_by("id").select_for_update().values_list("id", flat=True))


@transaction.atomic
def put(actor: Actor, username: str, role: str) -> User:
    """Make a person an operator with this role, or change an operator's role; effective from their next request on.

    An unknown person is created, and cannot sign in without a password. Raises BadName, and NotAllowed for the last
    admin and for the break-glass operator while it is needed.
    """
    if role not in User.OperatorRole.values:
        raise BadName("role", role, " | ".join(User.OperatorRole.values))
    admins = locked_admins()
    user = User.objects.select_for_update().filter(username=username).first() or members.create_person(username)
    before = user.operator_role if user.is_staff else None
    if before == role:
        return user
    if hasattr(user, "provider_member") and user.provider_member.tenant.slug != PLATFORM_SLUG:
        # that provider could sign in as an operator
        raise NotAllowed("person", username, "somebody who signs in through a tenant's provider, not an operator")
    _require_no_break_glass(user)
    _require_other_admin(admins, user, role)
    if before == User.OperatorRole.ADMIN:
        _revoke_invitations(user)
    user.is_staff, user.operator_role = True, role
    user.save(update_fields=["is_staff", "operator_role"])
    _record(actor, "operator.set", user, before=before, after=role)
    return user


@transaction.atomic
def remove(actor: Actor, username: str) -> None:
    """Take all rights of an operator from a person and revoke their tokens; their memberships stay.

    Raises NotFound, and NotAllowed for the last admin and for the break-glass operator while it is needed.
    """
    admins = locked_admins()
    user = User.objects.select_for_update().filter(username=username, is_staff=True).first()
    if user is None:
        raise NotFound("operator", username)
    _require_no_break_glass(user)
    _require_other_admin(admins, user, None)
    _revoke_invitations(user)
    before = user.operator_role
    user.is_staff = user.is_superuser = False
    user.save(update_fields=["is_staff", "is_superuser"])
    OperatorToken.objects.filter(user=user, revoked_at=None).update(revoked_at=timezone.now())
    _record(actor, "operator.removed", user, before=before, after=None)


def _require_other_admin(admins: set[int], user: User, role: str | None) -> None:
    if admins == {user.id} and role != User.OperatorRole.ADMIN:
        raise NotAllowed("operator", user.username, LAST_ADMIN)


def _provider_only() -> QuerySet[Any]:
    # by name: the identity part uses this one
    return apps.get_model("identity", "OperatorSignIn")._default_manager.filter(provider_only=True)


def _require_no_break_glass(user: User) -> None:
    if _provider_only().filter(break_glass=user).exists():
        raise NotAllowed("operator", user.username, BREAK_GLASS)


def _revoke_invitations(user: User) -> None:
    """Revoke what an admin has invited to who is none any more, except what their own role in a tenant lets them."""
    invited = Invitation.objects.filter(created_by=user.username, accepted_at=None, revoked_at=None)
    own = Membership.objects.filter(user=user, role__in=members.NOT_TO_INVITE)
    for tenant, role in own.values_list("tenant", "role"):
        invited = invited.filter(~Q(tenant=tenant) | Q(tenant=None) | members.NOT_TO_INVITE[role])
    invited.update(revoked_at=timezone.now())


def _record(actor: Actor, action: str, user: User, *, before: str | None, after: str | None) -> None:
    def described(role: str | None) -> dict[str, str] | None:
        return None if role is None else {"person": user.username, "role": role}

    audit.record(actor, action, ("user", user.id), before=described(before), after=described(after))
