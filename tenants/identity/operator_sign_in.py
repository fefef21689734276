"""How operators sign in: through the operators' provider only, if so set, and one break-glass operator beside it.

The break-glass operator is for the day on which the provider, or the way to it, is down: an admin with a password and a
second factor, kept sealed. Each use is in the audit log as ``break_glass.used``, and raises an alert.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import transaction

from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotAllowed, NotFound
from tenants.identity.models import OperatorSignIn
from tenants.ids import PLATFORM_SLUG
from tenants.models import User
from tenants.people import operators

USED = "break_glass.used"
PROVIDER_ONLY = "operators sign in through their provider only"
_TARGET = ("platform", "operators")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What belongs in the envelope. It is shown once."""

    name: str
    password: str
    totp_secret: str
    recovery_codes: list[str]


def rules() -> OperatorSignIn:
    """Return how operators sign in."""
    found = OperatorSignIn.objects.select_related("break_glass").filter(id=1).first()
    return found or OperatorSignIn()


def is_break_glass(user: User) -> bool:
    """Return whether this is the break-glass operator."""
    return user.is_staff and OperatorSignIn.objects.filter(break_glass=user).exists()


def must_use_provider(user: User) -> bool:
    """Return whether this operator may not sign in with a password or a passkey."""
    return bool(must_use_provider_among([user]))


def must_use_provider_among(users: Iterable[User]) -> set[int]:
    """Return the ids of those who may not. Reads nothing of each user whose ``provider_member`` was selected."""
    staff = [user for user in users if user.is_staff]
    found = rules() if staff else OperatorSignIn()
    if not found.provider_only:
        return set()
    without = {user.pk for user in staff if user.pk != found.break_glass_id and not hasattr(user, "provider_member")}
    return without if without and operators.has_provider() else set()


@transaction.atomic
def set_provider_only(actor: Actor, wanted: bool) -> None:
    """Let operators sign in through their provider only, or also otherwise. Other sessions of theirs end.

    Raises NotAllowed without a provider, or without a break-glass operator who is an admin, because then nobody might
    get in.
    """
    row = _locked()
    if row.provider_only == wanted:
        return
    if wanted and not operators.has_provider():
        raise NotAllowed("sign-in of operators", "provider only", f"without a provider of the tenant {PLATFORM_SLUG!r}")
    if wanted and row.break_glass_id not in operators.locked_admins():
        raise NotAllowed("sign-in of operators", "provider only", "without a break-glass operator")
    row.provider_only = wanted
    row.save()
    if wanted:
        sessions = UserSession.objects.filter(user__is_staff=True, user__provider_member=None)
        sessions = sessions.exclude(user=row.break_glass)
        Session.objects.filter(session_key__in=list(sessions.values_list("session_key", flat=True))).delete()
        sessions.delete()
    audit.record(
        actor, "operators.sign_in", _TARGET, before={"provider_only": not wanted}, after={"provider_only": wanted}
    )


@transaction.atomic
def make_break_glass(actor: Actor, name: str) -> Sealed:
    """Make the break-glass operator: an admin with a new password, an app's secret and recovery codes.

    For the one there is, all of that is made anew. Raises BadName, and NotAllowed if there is another one, or if the
    person signs in through a provider.
    """
    row = _locked()
    if row.break_glass is not None and row.break_glass.username != name:
        raise NotAllowed("operator", name, f"besides the break-glass operator {row.break_glass.username}")
    found = User.objects.filter(username=name).first()
    if found is not None and hasattr(found, "provider_member"):
        raise NotAllowed("person", name, "somebody who signs in through a provider")
    if found is not None and row.break_glass is None:
        raise NotAllowed("person", name, "there already: give the account a name of its own")
    user = operators.put(actor, name, User.OperatorRole.ADMIN)
    sealed = Sealed(
        name=name, password=secrets.token_urlsafe(24), totp_secret=generate_totp_secret(), recovery_codes=[]
    )
    user.set_password(sealed.password)  # the sessions of the one before end with it
    user.is_active = True
    user.save(update_fields=["password", "is_active"])
    Authenticator.objects.filter(user=user).delete()
    TOTP.activate(user, sealed.totp_secret)
    sealed.recovery_codes.extend(RecoveryCodes.activate(user).get_unused_codes())
    row.break_glass = user
    row.save()
    audit.record(actor, "break_glass.made", ("user", user.id), after={"person": name})
    return sealed


@transaction.atomic
def remove_break_glass(actor: Actor) -> str:
    """Take all rights from the break-glass operator; return the name.

    Raises NotFound without one, NotAllowed while operators sign in through their provider only or if no other admin is.
    """
    row = _locked()
    user = row.break_glass
    if user is None:
        raise NotFound("operator", "break-glass")
    if row.provider_only:
        raise NotAllowed("operator", user.username, "not needed: operators sign in through their provider only")
    if user.is_staff:
        operators.remove(actor, user.username)
    row.break_glass = None
    row.save()
    user.set_unusable_password()
    user.is_active = False
    user.save(update_fields=["password", "is_active"])
    audit.record(actor, "break_glass.removed", ("user", user.id), before={"person": user.username})
    return user.username


def record_use(user: User, *, address: str) -> None:
    """Append an entry for a sign-in of the break-glass operator, from which the alert is made; nothing for others."""
    if is_break_glass(user):
        actor = Actor(kind="user", name=user.get_username(), user=user)
        audit.record(actor, USED, ("user", user.id), after={"address": address, "person": user.username})


def _locked() -> OperatorSignIn:
    OperatorSignIn.objects.get_or_create(id=1)
    return OperatorSignIn.objects.select_for_update(of=("self",)).select_related("break_glass").get(id=1)
