"""Authentication of ``/api/v1/``: a portal session, or an operator's token (``ho_…``), a tenant's key (``hk_…``) or a
scrape token (``hs_…``).

``request.auth`` is the :class:`portal.access.principal.Principal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth.models import AnonymousUser
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated, PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from portal.access import confinement, support_view
from portal.access.identity import mfa
from portal.access.principal import (
    READ,
    Principal,
    principal_of_key,
    principal_of_scrape_token,
    principal_of_user,
)
from portal.access.requests.addresses import client_address
from portal.access.rights import operator_rights
from portal.errors import NotPermitted
from tenants import networks
from tenants.errors import KeyRefused
from tenants.keys import keys, scrape_tokens, tokens
from tenants.models import User

if TYPE_CHECKING:  # REST framework imports this module while it imports its views
    from rest_framework.views import APIView

CHALLENGE = 'Bearer realm="hearth"'
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class BearerAuthentication(BaseAuthentication):
    """``Authorization: Bearer ho_…``, ``hk_…`` or ``hs_…``. Any other such header is refused, never ignored."""

    def authenticate(self, request: Request) -> tuple[User | AnonymousUser, Principal] | None:
        """Return the user and principal, or None without the header. Raises AuthenticationFailed."""
        scheme, _, text = get_authorization_header(request).decode("latin-1").partition(" ")
        if not scheme:
            return None
        if scheme.lower() != "bearer":
            raise AuthenticationFailed("Send 'Authorization: Bearer' and a token or key.", "invalid_scheme")
        try:
            if text.startswith(f"{tokens.PREFIX}_"):
                user = tokens.authenticate(text.strip()).user
                _require_factor(user)
                return user, _principal_of_operator(request, user)
            if text.startswith(f"{scrape_tokens.PREFIX}_"):
                return AnonymousUser(), principal_of_scrape_token(scrape_tokens.authenticate(text.strip()))
            return AnonymousUser(), _principal_of_key(request, text.strip())
        except KeyRefused as refusal:
            # the same error for every reason, so that guessing reveals nothing
            raise AuthenticationFailed("This token or key is not valid.", "invalid_api_key") from refusal

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge of a 401."""
        return CHALLENGE


class PortalSession(SessionAuthentication):
    """The portal's session, with CSRF protection for changes."""

    def authenticate(self, request: Request) -> tuple[User, Principal] | None:
        """Return the signed-in user and principal, or None."""
        found = super().authenticate(request)
        if found is None:
            return None
        user = found[0]
        _require_factor(user)
        try:
            principal = support_view.principal_of_session(request, principal_of_user(user))
        except NotPermitted as error:
            raise PermissionDenied(error.reason) from None
        confinement.begin(principal)
        return user, principal


class MayRead(BasePermission):
    """Any principal that may read. ``portal.access.principal`` decides which tenants it sees."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the caller is authenticated. Raises PermissionDenied for a key without the scope to read."""
        if not isinstance(request.auth, Principal):
            return False
        if request.auth.kind == "scraper":
            raise PermissionDenied("A scrape token opens only /api/v1/fleet/targets. Use an operator's token or a key.")
        if not request.auth.may_read():
            raise PermissionDenied(f"This key lacks the scope {READ!r}.")
        return True


class OperatorOnly(MayRead):
    """Only operators."""

    message = "Only operators may do this."

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the caller is an operator."""
        return isinstance(request.auth, Principal) and request.auth.is_operator


class MayFindTargets(MayRead):
    """Operators, and scrape tokens."""

    message = "Only operators and scrape tokens may read this."

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the caller may see what Prometheus scrapes."""
        return isinstance(request.auth, Principal) and request.auth.may_find_targets()


class OperatorChanges(MayRead):
    """Every principal may read; only operators may change."""

    message = "Only operators may change this."

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the request only reads or the caller is an operator."""
        if not super().has_permission(request, view):
            return False
        return request.method in SAFE_METHODS or principal_of(request).is_operator


def _principal_of_operator(request: Request, user: User) -> Principal:
    """Return the principal of a token's operator. Raises PermissionDenied for a change that the role does not allow."""
    principal = principal_of_user(user)
    try:
        operator_rights.require(principal, request.method, request.path)
    except NotPermitted as error:
        raise PermissionDenied(error.reason) from None
    confinement.begin(principal)
    return principal


def _require_factor(user: User) -> None:
    """Raise PermissionDenied if a second factor is required of this person, who has none."""
    if mfa.is_missing(user):
        raise PermissionDenied(
            "A second factor is required of you. Set one up in the portal, under Account, Second factor.",
            "second_factor_required",
        )


def _principal_of_key(request: Request, text: str) -> Principal:
    """Return a key's principal and record the key's use. Raises KeyRefused, PermissionDenied."""
    key = keys.authenticate(text)
    principal = principal_of_key(key)
    if not networks.allows(principal.networks, client_address(request._request)):
        raise PermissionDenied("This key may not be used from this address.", "address_not_allowed")
    now = timezone.now()
    if keys.is_due(key, now):
        keys.note_used({key.id: now})
    return principal


def principal_of(request: Request) -> Principal:
    """Return the caller. Raises NotAuthenticated if a view has no permission class that requires one."""
    if not isinstance(request.auth, Principal):
        raise NotAuthenticated
    return request.auth
