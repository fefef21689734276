"""Invitations: a link, shown once, with which one person becomes a member of a tenant, or an operator.

Its text has the format of an API key with the prefix ``hi``. It ends after a week, when it is used, and when it is
revoked; whoever made it loses it together with the right to invite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from tenants import audit, members
from tenants.audit import Actor
from tenants.errors import AlreadyExists, BadName, InvitationRefused, NotAllowed, NotFound
from tenants.ids import PLATFORM_SLUG
from tenants.keys import key_format
from tenants.models import Invitation, Membership, Tenant, User
from tenants.people import operators

PREFIX = "hi"
LIFETIME = timedelta(days=7)
#: Open ones of a tenant, and of the platform.
MOST_OPEN = 50
#: Made within a day, ended ones too: each may be an e-mail to somebody.
MOST_A_DAY = 200
#: Ended ones are deleted when the next one is made, with their addresses.
KEPT = timedelta(days=30)
LONGEST_ADDRESS = 254

State = Literal["open", "accepted", "revoked", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invited:
    """A new invitation and the text of its link, which is not stored."""

    invitation: Invitation
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPerson:
    """A person who does not have an account yet."""

    username: str
    password: str


@transaction.atomic
def invite(actor: Actor, tenant: Tenant | None, role: str, *, email: str = "") -> Invited:
    """Make an invitation. ``tenant`` None: as an operator. Its text is returned only here.

    Raises BadName, and NotAllowed for an archived tenant, for operators who sign in through their provider only, and
    beyond MOST_OPEN and MOST_A_DAY.
    """
    roles = User.OperatorRole.values if tenant is None else Membership.Role.values
    if role not in roles:
        raise BadName("role", role, " | ".join(roles))
    if tenant is None:
        _require_passwords()
    _check_address(email)
    _require_room(tenant)
    credential = key_format.generate(PREFIX)
    stored, pepper_version = key_format.digest(credential.secret)
    made = Invitation.objects.create(
        public_id=credential.public_id,
        tenant=tenant,
        role=role,
        email=email,
        secret_hmac=stored,
        pepper_version=pepper_version,
        created_by=actor.name[:200],
        expires_at=timezone.now() + LIFETIME,
    )
    made.refresh_from_db()
    _record(actor, "invitation.created", made)
    return Invited(invitation=made, secret=credential.text())


def of(tenant: Tenant | None) -> QuerySet[Invitation]:
    """Return the invitations to a tenant, or of operators, newest first, ended ones too."""
    return Invitation.objects.filter(tenant=tenant).order_by("-id")


@transaction.atomic
def revoke(actor: Actor, tenant: Tenant | None, invitation_id: UUID) -> Invitation:
    """Revoke an open invitation. Idempotent. Raises NotFound, and NotAllowed for one that was accepted."""
    _lock_giver(tenant.id if tenant else None)
    found = Invitation.objects.select_for_update().filter(tenant=tenant, id=invitation_id).first()
    if found is None:
        raise NotFound("invitation", str(invitation_id))
    if found.accepted_at is not None:
        raise NotAllowed("invitation", str(found), "accepted")
    if found.revoked_at is None:
        found.revoked_at = timezone.now()
        found.save(update_fields=["revoked_at"])
        _record(actor, "invitation.revoked", found)
    return found


def state_of(invitation: Invitation) -> State:
    """Return whether it can still be accepted, and why not."""
    if invitation.accepted_at is not None:
        return "accepted"
    if invitation.revoked_at is not None:
        return "revoked"
    return "expired" if invitation.expires_at <= timezone.now() else "open"


def find(text: str) -> Invitation:
    """Return the open invitation with this text. Raises InvitationRefused."""
    return _found(text, Invitation.objects.select_related("tenant"))


@transaction.atomic
def accept(text: str, who: User | NewPerson) -> User:
    """Give a person what the invitation offers, once. A new person gets an account with their password.

    Raises InvitationRefused, AlreadyExists for a sign-in name that is taken, BadName for a name or password that is
    not valid, and NotAllowed if operators sign in through their provider only; the invitation is then still open.
    """
    _lock_giver(find(text).tenant_id)
    found = _found(text, Invitation.objects.select_related("tenant").select_for_update(of=("self",)))
    user = who if isinstance(who, User) else _created(who, found.email)
    actor = Actor(kind="user", name=user.username, user=user)
    _GIVING[found.tenant is None](actor, found, user)
    found.accepted_at, found.accepted_by = timezone.now(), user.username
    found.save(update_fields=["accepted_at", "accepted_by"])
    _record(actor, "invitation.accepted", found)
    return user


def _lock_giver(tenant_id: UUID | None) -> Tenant | None:
    """Lock the tenant, or the admins, before its invitations, as whoever removes somebody who invites does."""
    if tenant_id is not None:
        return Tenant.objects.select_for_update().get(id=tenant_id)
    operators.locked_admins()
    return None


def _give_membership(actor: Actor, found: Invitation, user: User) -> None:
    assert found.tenant is not None
    present = Membership.objects.filter(tenant=found.tenant, user=user).first()
    if present is not None:
        raise InvitationRefused("member", role=present.role)
    if found.tenant.state == Tenant.State.ARCHIVED:
        raise InvitationRefused("archived")
    members.put(actor, found.tenant, user.username, found.role)


def _give_operator(actor: Actor, found: Invitation, user: User) -> None:
    if user.is_staff:
        raise InvitationRefused("member", role=user.operator_role)
    _require_passwords()
    operators.put(actor, user.username, found.role)


def _require_passwords() -> None:
    """Raise NotAllowed if an invited operator could not sign in."""
    if operators.sign_in_through_provider_only():
        why = f"for people of the provider of the tenant {PLATFORM_SLUG!r} only; its groups make them operators"
        raise NotAllowed("list of operators", "platform", why)


_GIVING: dict[bool, Callable[[Actor, Invitation, User], None]] = {False: _give_membership, True: _give_operator}


def _found(text: str, rows: QuerySet[Invitation]) -> Invitation:
    credential = key_format.parse(text)
    if credential is None or credential.prefix != PREFIX:
        raise InvitationRefused("unknown")
    found = rows.filter(public_id=credential.public_id).first()
    if found is None or not key_format.matches(credential.secret, bytes(found.secret_hmac), found.pepper_version):
        raise InvitationRefused("unknown")
    state = state_of(found)
    if state != "open":
        raise InvitationRefused(state)
    return found


def _created(who: NewPerson, email: str) -> User:
    if User.objects.filter(username__iexact=who.username).exists():
        raise AlreadyExists("person", who.username)
    try:
        validate_password(who.password, User(username=who.username))
    except ValidationError as error:
        raise BadName("password", "", " ".join(error.messages)) from None
    try:
        with transaction.atomic():
            user = members.create_person(who.username)
    except IntegrityError:  # somebody took the name meanwhile
        raise AlreadyExists("person", who.username) from None
    user.email = email
    user.set_password(who.password)
    user.save(update_fields=["email", "password"])
    return user


def _check_address(address: str) -> None:
    if not address:
        return
    try:
        validate_email(address)
    except ValidationError:
        raise BadName("e-mail address", address[:100], "an address such as ada@example.com, or nothing") from None
    if len(address) > LONGEST_ADDRESS:
        raise BadName("e-mail address", address[:100], f"at most {LONGEST_ADDRESS} characters")


def _require_room(tenant: Tenant | None) -> None:
    """Delete invitations that ended long ago. Raises NotAllowed beyond a limit and if the tenant is archived."""
    locked = _lock_giver(tenant.id if tenant else None)
    if locked is not None and locked.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.slug, locked.state)
    kind, name = ("tenant", locked.slug) if locked is not None else ("list of operators", "platform")
    now = timezone.now()
    own = Invitation.objects.filter(tenant=tenant)
    own.filter(expires_at__lt=now - KEPT).delete()
    if own.filter(accepted_at=None, revoked_at=None, expires_at__gt=now).count() >= MOST_OPEN:
        raise NotAllowed(kind, name, f"at its limit of {MOST_OPEN} invitations")
    if own.filter(created_at__gt=now - timedelta(days=1)).count() >= MOST_A_DAY:
        raise NotAllowed(kind, name, f"at its limit of {MOST_A_DAY} invitations a day")


def _record(actor: Actor, action: str, invitation: Invitation) -> None:
    """Append an entry, without the address: the log is kept for longer than a person."""
    after = {"role": invitation.role, "created_by": invitation.created_by}
    audit.record(actor, action, ("invitation", invitation.id), tenant=invitation.tenant, after=after)
