"""Sessions of a provider's people last as long as the provider confirms them: at most 15 minutes after it stops.

The background role asks the provider every ten minutes, with the session's refresh token. A request asks it itself if
nobody did for 15 minutes. The answer's groups count as at a sign-in. Without a refresh token, or while the provider
cannot be reached, a session ends 15 minutes after it was last confirmed; the browser then signs in again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from datetime import datetime, timedelta
from typing import Any

from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.auth import logout
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from portal.access.identity import oidc
from portal.access.identity.fetching import ProviderUnavailable
from portal.access.requests.addresses import client_address
from portal.access.requests.paths import is_inference
from tenants.audit import SYSTEM
from tenants.identity import operator_sign_in, people, providers, sign_ins
from tenants.identity.errors import SignInRefused
from tenants.identity.models import ProviderMember, ProviderSession
from tenants.ids import PLATFORM_SLUG
from tenants.isolation import peppered
from tenants.keys import playground
from tenants.models import User

CONFIRM_AFTER = timedelta(minutes=10)
LIFETIME = timedelta(minutes=15)
#: Sessions that one tick confirms. Each takes a provider's answer: tens of milliseconds, at most 16 seconds.
MOST_PER_TICK = 100
_FLAG = "hearth_provider_session"
_PURPOSE = b"hearth sign-in refresh token 1"

log = logging.getLogger(__name__)


def note(request: HttpRequest, refresh_token: str) -> None:
    """Keep the refresh token of the sign-in that this request completes."""
    request.hearth_refresh_token = refresh_token or ""  # type: ignore[attr-defined]


def is_through_provider(request: HttpRequest) -> bool:
    """Return whether this request completes a sign-in through a provider."""
    return hasattr(request, "hearth_refresh_token")


def begin(request: HttpRequest, user: User) -> None:
    """Store the session of a provider's member, once it has its key."""
    key = request.session.session_key
    assert key is not None  # the session has just begun
    row = ProviderSession(session_key=key, member=user.provider_member, confirmed_at=timezone.now())
    _keep(row, getattr(request, "hearth_refresh_token", ""))
    row.save()
    request.session[_FLAG] = True


class Confirm(MiddlewareMixin):
    """End the request's session if its provider does not confirm it, or if its person has to come through one."""

    def process_request(self, request: HttpRequest) -> None:
        """Sign out a session that is overdue, or an operator's without the provider that they need.

        The request then goes on as nobody's.
        """
        if settings.SESSION_COOKIE_NAME not in request.COOKIES or is_inference(request.path):
            return
        if not is_confirmed(request.session):
            logout(request)
        user = request.user
        if isinstance(user, User) and operator_sign_in.must_use_provider(user):
            # made an operator after the sign-in, or by an invitation
            sign_ins.refuse(user, address=client_address(request), reason=operator_sign_in.PROVIDER_ONLY)
            logout(request)


def is_confirmed(session: SessionBase) -> bool:
    """Return whether this session is none of a provider's people, or one that the provider confirms."""
    return not session.get(_FLAG) or confirm(session.session_key or "", LIFETIME)


def confirmed_among(sessions: Mapping[str, Mapping[str, Any]]) -> Set[str]:
    """Return the keys of those sessions, by their keys, that no provider has to confirm or that one did lately.

    Asks no provider: the background role does.
    """
    asked = {key for key, data in sessions.items() if data.get(_FLAG)}
    lately = ProviderSession.objects.filter(session_key__in=asked, confirmed_at__gt=timezone.now() - LIFETIME)
    fresh = set(lately.values_list("session_key", flat=True)) if asked else set()
    return sessions.keys() - asked | fresh


def confirm(session_key: str, after: timedelta) -> bool:
    """Return whether a session is valid; ask its provider if that was last done longer ago than ``after``.

    One process asks at a time, because many providers accept a refresh token once.
    """
    now = timezone.now()
    with transaction.atomic():
        locked = ProviderSession.objects.select_for_update(of=("self",)).filter(session_key=session_key)
        row = locked.select_related("member__provider__tenant", "member__user", "member__tenant").first()
        if row is None:
            return False
        if row.confirmed_at > now - after:
            return True
        try:
            if _asked(row):
                return True
        except ProviderUnavailable as error:
            log.warning("cannot confirm a session of %s: %s", row.member.tenant.slug, error)
            if row.confirmed_at > now - LIFETIME:
                return True
        _end(row)
        return False


def run(now: datetime | None = None) -> int:
    """Confirm the sessions that are due, the oldest first; return how many were not confirmed, and ended."""
    due = ProviderSession.objects.filter(confirmed_at__lt=(now or timezone.now()) - CONFIRM_AFTER)
    ended = 0
    for key in list(due.order_by("confirmed_at").values_list("session_key", flat=True)[:MOST_PER_TICK]):
        if not Session.objects.filter(session_key=key).exists():
            ProviderSession.objects.filter(session_key=key).delete()  # signed out, or expired
        else:
            ended += not _confirmed(key)
    return ended


def _confirmed(key: str) -> bool:
    try:
        return confirm(key, CONFIRM_AFTER)
    except Exception:  # whatever one provider does, the sessions of others are confirmed
        log.exception("a session could not be confirmed")
        return True


def _asked(row: ProviderSession) -> bool:
    """Ask the provider; return whether it confirms the session. Raises ProviderUnavailable."""
    member, provider = row.member, row.member.provider
    if provider is None or row.refresh_sealed is None or not member.user.is_active:
        return False
    if member.user.is_staff and member.tenant.slug != PLATFORM_SLUG:
        return False
    try:
        asking = oidc.provider_of(HttpRequest(), provider)
        answer = oidc.refreshed(
            asking, peppered.unseal(_PURPOSE, row.id, bytes(row.refresh_sealed), row.pepper_version)
        )
        rotated = answer.get("refresh_token")
        if isinstance(rotated, str) and rotated:  # kept whatever follows: many providers take the old one no more
            _keep(row, rotated)
            row.save()
        if "id_token" not in answer:  # without it nobody knows which groups the person has
            return row.confirmed_at > timezone.now() - LIFETIME
        _apply(asking, member, answer["id_token"])
    except (oidc.Refused, SignInRefused, peppered.Unreadable):
        ProviderMember.objects.filter(user=member.user).update(refused_at=timezone.now())
        return False
    row.confirmed_at = timezone.now()
    row.save()
    return True


def _apply(asking: oidc.TenantProvider, member: ProviderMember, id_token: object) -> None:
    """Give the person the role that they have now. Raises SignInRefused if they have none, Refused."""
    assert member.provider is not None
    claims = asking.get_oauth2_adapter(asking.request).claims_of(id_token)
    known = SocialAccount.objects.filter(user=member.user, provider=str(member.provider.id), uid=claims["sub"])
    if not known.exists():
        raise SignInRefused("the provider answered about another person")
    role = providers.role_for(member.provider, claims)
    if role is None:
        people.leave(member)
        raise SignInRefused("none of this person's groups has a role in this tenant")
    people.join(member.provider, member.user, role)


def _keep(row: ProviderSession, refresh_token: str) -> None:
    sealed, row.pepper_version = peppered.seal(_PURPOSE, row.id, refresh_token)
    row.refresh_sealed = sealed if refresh_token else None


def _end(row: ProviderSession) -> None:
    playground.revoke_of(SYSTEM, row.member.user)
    Session.objects.filter(session_key=row.session_key).delete()
    UserSession.objects.filter(session_key=row.session_key).delete()
    ProviderSession.objects.filter(id=row.id).delete()
