"""``/api/v1/tokens``: an operator's bearer tokens, issued for a name and password."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.contrib.auth import authenticate
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access.identity import mfa
from portal.access.requests import login_throttle
from portal.access.requests.addresses import client_address
from portal.api.authentication import CHALLENGE, OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.identity import operator_sign_in
from tenants.keys import tokens
from tenants.models import OperatorToken, User

DEFAULT_SECONDS = 30 * 24 * 3600
LONGEST_SECONDS = 366 * 24 * 3600


class NewTokenSerializer(serializers.Serializer[OperatorToken]):
    """The operator's name and password, and the token's name and lifetime."""

    username = serializers.CharField(max_length=150, trim_whitespace=False)
    password = serializers.CharField(max_length=4096, trim_whitespace=False, write_only=True)
    code = serializers.CharField(
        max_length=32,
        required=False,
        default="",
        write_only=True,
        help_text="Of your authenticator app, or a recovery code; for those who have a second factor.",
    )
    name = serializers.CharField(max_length=200, default="api")
    expires_in_seconds = serializers.IntegerField(min_value=60, max_value=LONGEST_SECONDS, default=DEFAULT_SECONDS)


class TokenSerializer(serializers.Serializer[OperatorToken]):
    """A token without its secret."""

    id = serializers.UUIDField(read_only=True)
    public_id = serializers.CharField(read_only=True)
    name = serializers.CharField(read_only=True)
    expires_at = serializers.DateTimeField(read_only=True, allow_null=True)
    revoked_at = serializers.DateTimeField(read_only=True, allow_null=True)
    created_at = serializers.DateTimeField(read_only=True)


class IssuedTokenSerializer(TokenSerializer):
    """A new token with its secret, which is shown only once."""

    secret = serializers.CharField(read_only=True, help_text="Send it as `Authorization: Bearer`. Shown once.")


class TokensView(ApiView):
    """Create a token."""

    without_key = "nobody is known yet to whom a key could belong"
    authentication_classes = ()
    permission_classes = (AllowAny,)

    def get_authenticate_header(self, request: Request) -> str:
        """Return the challenge of a 401; without one REST framework would respond 403."""
        return CHALLENGE

    @extend_schema(
        operation_id="create_token",
        auth=[],
        request=NewTokenSerializer,
        responses={201: IssuedTokenSerializer, **error_responses(400, 403, 429)},
    )
    def post(self, request: Request) -> Response:
        """Exchange an operator's name and password for a bearer token. Wrong passwords are throttled."""
        body = NewTokenSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        wanted = body.validated_data
        user = _user(request, wanted["username"], wanted["password"], wanted["code"])
        if mfa.is_missing(user):
            raise PermissionDenied(
                "A second factor is required of you. Set one up in the portal, under Account, Second factor.",
                "second_factor_required",
            )
        if not user.is_staff:
            raise PermissionDenied("Tokens are for operators. Use one of the tenant's keys instead.")
        if operator_sign_in.must_use_provider(user):
            raise PermissionDenied(
                "Operators sign in through their provider only, and a token would outlive what it decides. Use "
                "`hearth` on a machine of this instance, or make the token as the break-glass operator.",
                "provider_required",
            )
        operator_sign_in.record_use(user, address=client_address(request._request))
        issued = tokens.issue(
            Actor(kind="user", name=user.get_username()),
            user,
            name=wanted["name"],
            expires_at=timezone.now() + timedelta(seconds=wanted["expires_in_seconds"]),
        )
        document = {**TokenSerializer(issued.token).data, "secret": issued.secret}
        return Response(document, status=status.HTTP_201_CREATED)


class TokenView(ApiView):
    """One token of the calling operator."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="revoke_token", responses={200: TokenSerializer, **error_responses(403, 404)})
    def delete(self, request: Request, token: UUID) -> Response:
        """Revoke the token."""
        principal = principal_of(request)
        found = OperatorToken.objects.filter(id=token, user=principal.user).first()
        if found is None:
            raise NotFound("token", str(token))
        tokens.revoke(principal.actor, found)
        found.refresh_from_db()
        return Response(TokenSerializer(found).data)


def _user(request: Request, username: str, password: str, code: str) -> User:
    """Return the user with this name, password and, if they have a second factor, code.

    Raises TooManyAttempts, AuthenticationFailed.
    """
    with login_throttle.attempt(username, client_address(request._request)):
        user = authenticate(request, username=username, password=password)
        if not isinstance(user, User):
            raise AuthenticationFailed("The name or the password is wrong.", "invalid_credentials")
        if mfa.has_factor(user):
            with login_throttle.code_attempt(str(user.pk)):
                _require_code(user, code)
        return user


def _require_code(user: User, code: str) -> None:
    if not mfa.is_code_right(user, code):
        raise AuthenticationFailed(
            "Send `code` too: one of your authenticator app, or an unused recovery code.", "second_factor_required"
        )
