"""``/api/v1/tenants/{tenant}/sign-in-provider``: the OpenID Connect provider whose people become its members."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access.identity import provider_setup
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from tenants.identity import providers
from tenants.identity.models import SignInProvider
from tenants.identity.providers import LONGEST, MOST_ROLES, ProviderTerms
from tenants.models import Membership, User

_ROLES = (
    f"One of {', '.join(Membership.Role.values)}; of the tenant `platform`, whose people are operators, one of "
    f"{', '.join(User.OperatorRole.values)}."
)


class GroupRoleSerializer(serializers.Serializer[Any]):
    """The role of a group's people."""

    group = serializers.CharField(max_length=LONGEST["group"])
    role = serializers.CharField(max_length=16, help_text=_ROLES)


class SignInProviderSerializer(serializers.Serializer[Any]):
    """A tenant's sign-in provider, without its secret."""

    issuer = serializers.CharField(max_length=LONGEST["issuer"], help_text="As the provider writes it.")
    client_id = serializers.CharField(max_length=LONGEST["client id"])
    client_secret = serializers.CharField(
        max_length=LONGEST["client secret"],
        required=False,
        write_only=True,
        help_text="Kept sealed, never shown. Without it the stored one stays.",
    )
    groups_claim = serializers.CharField(max_length=LONGEST["groups claim"], default="groups")
    roles = serializers.ListField(
        child=GroupRoleSerializer(),
        max_length=MOST_ROLES,
        default=list,
        help_text="The first group that a person has decides.",
    )
    default_role = serializers.CharField(
        max_length=16,
        allow_null=True,
        default=None,
        help_text="Of people without such a group; null: they do not become members.",
    )
    callback_url = serializers.CharField(read_only=True, help_text="The redirect address to register there.")


class ProviderTestSerializer(serializers.Serializer[Any]):
    """What came of asking the provider."""

    ok = serializers.BooleanField(read_only=True)
    problem = serializers.CharField(read_only=True, allow_null=True)


class SignInProviderView(ApiView):
    """The provider of a tenant."""

    @extend_schema(
        operation_id="get_sign_in_provider", responses={200: SignInProviderSerializer, **error_responses(403, 404)}
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Return the provider. For owners and operators with a session or an operator's token, not for keys."""
        found = provider_setup.tenant_to_set_up(principal_of(request), tenant)
        return Response(_document(request, provider_setup.find(found)))

    @extend_schema(
        operation_id="set_sign_in_provider",
        request=SignInProviderSerializer,
        responses={200: SignInProviderSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str) -> Response:
        """Set the provider. With another issuer, those who came from the one before are no members any more."""
        principal = principal_of(request)
        found = provider_setup.tenant_to_set_up(principal, tenant)
        body = SignInProviderSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        wanted = body.validated_data
        terms = ProviderTerms(
            issuer=wanted["issuer"],
            client_id=wanted["client_id"],
            client_secret=wanted.get("client_secret"),
            groups_claim=wanted["groups_claim"],
            roles=tuple((each["group"], each["role"]) for each in wanted["roles"]),
            default_role=wanted["default_role"] or "",
        )
        return Response(_document(request, provider_setup.put(principal, found, terms)))

    @extend_schema(operation_id="remove_sign_in_provider", responses={204: None, **error_responses(403, 404)})
    def delete(self, request: Request, tenant: str) -> Response:
        """Remove the provider; those who came from it are signed out and no members any more."""
        principal = principal_of(request)
        providers.remove(principal.actor, provider_setup.tenant_to_set_up(principal, tenant))
        return Response(status=status.HTTP_204_NO_CONTENT)


class TestSignInProviderView(ApiView):
    """A test of the provider."""

    without_key = "it changes nothing"

    @extend_schema(
        operation_id="test_sign_in_provider",
        request=None,
        responses={200: ProviderTestSerializer, **error_responses(403, 404)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Ask the provider for its description and its keys; takes at most 16 seconds."""
        found = provider_setup.tenant_to_set_up(principal_of(request), tenant)
        result = provider_setup.test(provider_setup.find(found))
        return Response({"ok": not result.problem, "problem": result.problem or None})


def _document(request: Request, provider: SignInProvider) -> dict[str, Any]:
    callback = provider_setup.callback_url(request._request, provider)
    return providers.described(provider) | {"callback_url": callback}
