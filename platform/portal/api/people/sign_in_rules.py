"""``…/tenants/{tenant}/sign-in-rules`` and ``…/operator-sign-in``: what is required of people at sign-in."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access.identity import provider_setup
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from tenants.identity import operator_sign_in, second_factor
from tenants.people import operators


class SignInRulesSerializer(serializers.Serializer[Any]):
    """What is required of a tenant's members who sign in with a password."""

    second_factor_required = serializers.BooleanField(
        help_text="An app or a passkey. Whoever has none sees no page but the one to set it up."
    )


class OperatorSignInSerializer(serializers.Serializer[Any]):
    """How operators sign in. What is left out of a change stays."""

    second_factor_required = serializers.BooleanField(
        required=False, help_text="Of every operator who signs in with a password, also for their tokens."
    )
    provider_only = serializers.BooleanField(
        required=False,
        help_text="No operator signs in with a password or a passkey, except the break-glass operator. Needs both that "
        "operator and a sign-in provider of the tenant `platform`.",
    )
    has_provider = serializers.BooleanField(read_only=True)
    break_glass = serializers.CharField(read_only=True, allow_null=True, help_text="The sign-in name.")


class TenantSignInRulesView(ApiView):
    """What is required of a tenant's members."""

    @extend_schema(
        operation_id="get_sign_in_rules", responses={200: SignInRulesSerializer, **error_responses(403, 404)}
    )
    def get(self, request: Request, tenant: str) -> Response:
        """Return the rules. For owners and operators with a session or an operator's token, not for keys."""
        found = provider_setup.tenant_to_set_up(principal_of(request), tenant)
        return Response({"second_factor_required": second_factor.is_required(found)})

    @extend_schema(
        operation_id="set_sign_in_rules",
        request=SignInRulesSerializer,
        responses={200: SignInRulesSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str) -> Response:
        """Set the rules; they hold from each member's next page on."""
        principal = principal_of(request)
        found = provider_setup.tenant_to_set_up(principal, tenant)
        body = SignInRulesSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        second_factor.require(principal.actor, found, body.validated_data["second_factor_required"])
        return Response(body.data)


class OperatorSignInView(ApiView):
    """How operators sign in."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_operator_sign_in", responses={200: OperatorSignInSerializer, **error_responses(403)}
    )
    def get(self, request: Request) -> Response:
        """Return how operators sign in. Operators only."""
        return Response(_operators())

    @extend_schema(
        operation_id="change_operator_sign_in",
        request=OperatorSignInSerializer,
        responses={200: OperatorSignInSerializer, **error_responses(400, 403, 409)},
    )
    def patch(self, request: Request) -> Response:
        """Change how operators sign in. For operators with the role `admin`."""
        body = OperatorSignInSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        wanted, actor = body.validated_data, principal_of(request).actor
        if "provider_only" in wanted:
            operator_sign_in.set_provider_only(actor, wanted["provider_only"])
        if "second_factor_required" in wanted:
            second_factor.require(actor, None, wanted["second_factor_required"])
        return Response(_operators())


def _operators() -> dict[str, Any]:
    rules = operator_sign_in.rules()
    return {
        "second_factor_required": second_factor.is_required(None),
        "provider_only": rules.provider_only,
        "has_provider": operators.has_provider(),
        "break_glass": rules.break_glass.username if rules.break_glass else None,
    }
