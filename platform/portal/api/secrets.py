"""``/api/v1/secrets``: named secrets of models. Their values go in and never come out."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from workers.weights import secrets
from workers.weights.secrets import LONGEST_VALUE, ListedSecret


class SecretSerializer(serializers.Serializer[ListedSecret]):
    """A secret without its value."""

    name = serializers.CharField(read_only=True)
    set_at = serializers.DateTimeField(read_only=True, help_text="When its value was last set.")
    models = serializers.ListField(child=serializers.CharField(), read_only=True, help_text="Those that use it.")


class SecretListSerializer(serializers.Serializer[Any]):
    """All secrets by name."""

    secrets = SecretSerializer(many=True, read_only=True)


class SecretValueSerializer(serializers.Serializer[Any]):
    """A secret's value."""

    value = serializers.CharField(
        max_length=LONGEST_VALUE,
        write_only=True,
        help_text="Printable ASCII without spaces. Stored sealed, never shown.",
    )


class SecretsView(ApiView):
    """The secrets of models."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="list_secrets", responses={200: SecretListSerializer, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """List the secrets with the models that use them, without their values. Operators only."""
        return Response(SecretListSerializer({"secrets": secrets.listed()}).data)


class SecretView(ApiView):
    """One secret."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="set_secret",
        request=SecretValueSerializer,
        responses={200: SecretSerializer, 201: SecretSerializer, **error_responses(400, 403)},
    )
    def put(self, request: Request, secret: str) -> Response:
        """Set a secret, or replace its value; fetches that were refused begin again. Operators only."""
        body = SecretValueSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        new = secrets.store(principal_of(request).actor, secret, body.validated_data["value"])
        found = next(each for each in secrets.listed() if each.name == secret)
        return Response(SecretSerializer(found).data, status=201 if new else 200)

    @extend_schema(operation_id="remove_secret", responses={204: None, **error_responses(403, 404, 409)})
    def delete(self, request: Request, secret: str) -> Response:
        """Remove a secret. 409 while a model uses it. Operators only."""
        secrets.remove(principal_of(request).actor, secret)
        return Response(status=204)
