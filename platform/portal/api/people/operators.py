"""``/api/v1/operators``: operators and what each may change."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from tenants.models import User
from tenants.people import operators


class OperatorRoleSerializer(serializers.Serializer[User]):
    """An operator's role."""

    role = serializers.ChoiceField(User.OperatorRole.choices, source="operator_role")


class OperatorSerializer(OperatorRoleSerializer):
    """An operator."""

    person = serializers.CharField(read_only=True, source="username", help_text="The sign-in name.")
    email = serializers.CharField(read_only=True)
    is_active = serializers.BooleanField(read_only=True)
    last_login = serializers.DateTimeField(read_only=True, allow_null=True)


class OperatorListSerializer(serializers.Serializer[Any]):
    """All operators by name."""

    operators = OperatorSerializer(many=True, read_only=True)


class OperatorsView(ApiView):
    """The operators."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="list_operators", responses={200: OperatorListSerializer, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """List the operators with their roles. Operators only."""
        return Response({"operators": [OperatorSerializer(each).data for each in operators.every()]})


class OperatorView(ApiView):
    """One operator."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="set_operator",
        request=OperatorRoleSerializer,
        responses={200: OperatorSerializer, **error_responses(400, 403, 409)},
    )
    def put(self, request: Request, person: str) -> Response:
        """Make a person an operator with this role, or change an operator's role. For operators with the role `admin`.

        An unknown person is created, without a password. The last admin keeps the role.
        """
        body = OperatorRoleSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        user = operators.put(principal_of(request).actor, person, body.validated_data["operator_role"])
        return Response(OperatorSerializer(user).data)

    @extend_schema(operation_id="remove_operator", responses={204: None, **error_responses(403, 404, 409)})
    def delete(self, request: Request, person: str) -> Response:
        """Take all rights of an operator from a person and revoke their tokens. For operators with the role `admin`."""
        operators.remove(principal_of(request).actor, person)
        return Response(status=204)
