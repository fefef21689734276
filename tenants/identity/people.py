"""People who come from a tenant's provider: their names, their membership, and that they leave.

Those of the tenant ``platform`` are operators: their groups give an operator's role in place of a membership.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils import timezone

from tenants import members
from tenants.audit import SYSTEM, Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.identity.errors import SignInRefused
from tenants.identity.models import ProviderMember, ProviderSession, SignInProvider
from tenants.ids import PLATFORM_SLUG
from tenants.keys import playground
from tenants.models import OperatorToken, User
from tenants.people import operators

_LONGEST_NAME = 60
_MOST_NUMBERED = 10_000


def new_username(provider: SignInProvider, claims: Mapping[str, Any]) -> str:
    """Return a name that nobody has, such as ``anna@acme``: what the provider calls the person, at the tenant.

    Names are compared without case, so that no name looks like another person's.
    """
    called = next((claims[each] for each in ("preferred_username", "email") if isinstance(claims.get(each), str)), "")
    local = re.sub(r"[^\w.+-]", "", called.partition("@")[0], flags=re.ASCII)[:_LONGEST_NAME] or "member"
    for number in range(1, _MOST_NUMBERED):
        name = f"{local}{'' if number == 1 else f'-{number}'}@{provider.tenant.slug}"
        if not User.objects.filter(username__iexact=name).exists():
            return name
    raise SignInRefused("too many people have this name")


def check(provider: SignInProvider, user: User) -> ProviderMember:
    """Return the row of somebody who comes from this provider. Raises SignInRefused for everybody else."""
    found = ProviderMember.objects.filter(user=user, provider=provider, tenant=provider.tenant).first()
    if found is None or ((user.is_staff or user.is_superuser) and provider.tenant.slug != PLATFORM_SLUG):
        raise SignInRefused("this person does not sign in through this provider")
    if not user.is_active:
        raise SignInRefused("this account is switched off")
    return found


@transaction.atomic
def join(provider: SignInProvider, user: User, role: str) -> ProviderMember:
    """Give a person the role that their groups say, and note that they signed in. They have no other tenant.

    Raises SignInRefused for a role that there is not.
    """
    row, _ = ProviderMember.objects.update_or_create(
        user=user,
        defaults={
            "tenant": provider.tenant,
            "provider": provider,
            "signed_in_at": timezone.now(),
            "refused_at": None,
        },
    )
    try:
        with suppress(NotAllowed):  # the tenant's last owner stays its owner, and the last admin one
            if provider.tenant.slug == PLATFORM_SLUG:
                operators.put(SYSTEM, user.get_username(), role)
            else:
                members.put(SYSTEM, provider.tenant, user.get_username(), role)
    except BadName as error:
        raise SignInRefused(f"this person's groups give the {error.kind} {error.name!r}, not {error.allowed}") from None
    return row


@transaction.atomic
def leave(member: ProviderMember, actor: Actor = SYSTEM) -> None:
    """End a person's sessions and membership, because their provider does not let them in. Idempotent."""
    ProviderMember.objects.filter(user=member.user).update(refused_at=timezone.now())
    end_sessions(member)
    with suppress(NotFound, NotAllowed):  # the tenant's last owner stays a member, who cannot sign in
        if member.tenant.slug == PLATFORM_SLUG:
            OperatorToken.objects.filter(user=member.user, revoked_at=None).update(revoked_at=timezone.now())
            operators.remove(actor, member.user.get_username())
        else:
            members.remove(actor, member.tenant, member.user.get_username())


def leave_all(actor: Actor, provider: SignInProvider) -> None:
    """End the sessions and memberships of all who came from a provider."""
    for member in ProviderMember.objects.filter(provider=provider).select_related("user", "tenant"):
        leave(member, actor)


def end_sessions(member: ProviderMember) -> None:
    """End the sessions of a provider's member, and what their pages call the gateway with."""
    playground.revoke_of(SYSTEM, member.user)
    keys = list(ProviderSession.objects.filter(member=member).values_list("session_key", flat=True))
    Session.objects.filter(session_key__in=keys).delete()
    ProviderSession.objects.filter(member=member).delete()
