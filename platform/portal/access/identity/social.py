"""What django-allauth's social accounts do here: the groups of a tenant's provider decide who is a member."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from allauth.account.internal.emailkit import valid_email_or_none
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialApp, SocialLogin
from allauth.socialaccount.providers.base import AuthError, AuthProcess
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.access.identity import provider_sessions
from portal.access.identity.fetching import ProviderSession, ProviderUnavailable
from portal.access.identity.oidc import Refused, TenantProvider, provider_of
from portal.access.requests.addresses import client_address
from tenants import audit
from tenants.audit import SYSTEM
from tenants.identity import people, providers
from tenants.identity.errors import SignInRefused
from tenants.identity.models import SignInProvider
from tenants.models import User

log = logging.getLogger(__name__)


class SocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """The hooks of ``allauth.socialaccount``."""

    def get_provider(self, request: HttpRequest, provider: str, client_id: str | None = None) -> TenantProvider:
        """Return a tenant's provider by its id. Raises SocialApp.DoesNotExist."""
        row = _row(provider)
        if row is None:
            raise SocialApp.DoesNotExist
        return provider_of(request, row)

    def list_apps(self, request: HttpRequest, provider: str | None = None, client_id: str | None = None) -> list[Any]:
        """Return none: no provider is everybody's."""
        return []

    def get_requests_session(self) -> ProviderSession:
        """Return what sends requests within bounds."""
        return ProviderSession()

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        """People of a tenant's provider become members when they first sign in: ``pre_social_login`` let them in."""
        return True

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Give the person the role of their groups, or refuse them. Raises ImmediateHttpResponse."""
        row = _row(sociallogin.account.provider)
        try:
            if row is None or sociallogin.state.get("process") != AuthProcess.LOGIN:
                raise SignInRefused("this is not a sign-in through this provider")
            role = providers.role_for(row, sociallogin.claims)
            if sociallogin.is_existing:
                member = people.check(row, sociallogin.user)
                if role is None:
                    people.leave(member)
                else:
                    people.join(row, sociallogin.user, role)
            if role is None:
                raise SignInRefused("none of this person's groups has a role in this tenant")
            if not sociallogin.is_existing:
                sociallogin.user.username = people.new_username(row, sociallogin.claims)
                sociallogin.user.email = valid_email_or_none(_text(sociallogin.claims, "email")) or ""
        except SignInRefused as refusal:
            raise ImmediateHttpResponse(refused(request, row, refusal.reason)) from None
        sociallogin.role, sociallogin.row = role, row
        provider_sessions.note(request, sociallogin.token.token_secret)

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        """Make a person who signs in for the first time, with their membership."""
        try:
            with transaction.atomic():
                user: User = super().save_user(request, sociallogin, form)
                people.join(sociallogin.row, user, sociallogin.role)
        except IntegrityError:  # the same person at the same time, or somebody who got the same name
            raise ImmediateHttpResponse(refused(request, sociallogin.row, "please try again")) from None
        except SignInRefused as refusal:
            raise ImmediateHttpResponse(refused(request, sociallogin.row, refusal.reason)) from None
        return user

    def on_authentication_error(
        self, request: HttpRequest, provider: TenantProvider, error: Any = None, exception: Any = None, **more: Any
    ) -> None:
        """Say why the provider's answer was refused. Raises ImmediateHttpResponse."""
        if isinstance(exception, Refused | ProviderUnavailable):
            reason = str(exception)
        elif error == AuthError.CANCELLED:
            reason = "it was cancelled at the provider"
        elif exception is None and "error" not in request.GET:
            reason = "it was begun in another browser, or more than ten minutes ago"
        else:
            reason = "the provider answered with an error"
        row = _row(provider.app.provider_id)
        # anything else can be brought about without having begun to sign in, as often as somebody likes
        if isinstance(exception, Refused):
            raise ImmediateHttpResponse(refused(request, row, reason))
        log.warning("a sign-in through %s ended: %s", provider.app.provider_id, reason)
        raise ImmediateHttpResponse(_refusal(request, row, reason))


def refused(request: HttpRequest, row: SignInProvider | None, reason: str) -> HttpResponse:
    """Record that somebody was refused, and return the page that says why."""
    tenant = None if row is None else row.tenant
    after = {"address": client_address(request), "reason": reason}
    audit.record(SYSTEM, "sign_in.refused", ("tenant", tenant.id if tenant else "unknown"), tenant=tenant, after=after)
    return _refusal(request, row, reason)


def _refusal(request: HttpRequest, row: SignInProvider | None, reason: str) -> HttpResponse:
    tenant = None if row is None else row.tenant
    context = {"reason": reason, "tenant_slug": tenant.slug if tenant else ""}
    return render(request, "socialaccount/authentication_error.html", context, status=401)


def _row(provider: str) -> SignInProvider | None:
    try:
        return providers.usable(UUID(provider))
    except ValueError:
        return None


def _text(claims: dict[str, Any], name: str) -> str:
    found = claims.get(name)
    return found if isinstance(found, str) and "\0" not in found and len(found) <= 254 else ""
