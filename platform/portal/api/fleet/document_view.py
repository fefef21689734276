"""``PUT /api/v1/fleet``: make the fleet what a document says; and the document of the fleet as it is."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access.rights import operator_rights
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses
from portal.api.text_body import flag
from portal.fleet.document import apply, present, schema
from portal.fleet.document.apply import Outcome

YAML = "application/yaml"
_FLAGS = ("dry_run", "prune", "confirm_prices")
_PARAMETERS = [
    OpenApiParameter("dry_run", bool, description="Only say what would change."),
    OpenApiParameter("prune", bool, description="Archive the platform's models that the document does not name."),
    OpenApiParameter("confirm_prices", bool, description="Allow changes of prices of more than tenfold."),
]


class FieldChangeSerializer(serializers.Serializer[Any]):
    """A field and its values; null: it has none."""

    field = serializers.CharField(read_only=True)
    before = serializers.JSONField(read_only=True)
    after = serializers.JSONField(read_only=True)


class EntryChangeSerializer(serializers.Serializer[Any]):
    """What happens to one entry of the document."""

    action = serializers.CharField(read_only=True, help_text="`add`, `change` or `archive`.")
    kind = serializers.CharField(read_only=True, help_text="`pool`, `model` or `deployment`.")
    name = serializers.CharField(read_only=True)
    values = FieldChangeSerializer(many=True, read_only=True)


class OutcomeSerializer(serializers.Serializer[Outcome]):
    """What was, or would be, changed; empty if the fleet is as the document says."""

    changes = EntryChangeSerializer(many=True, read_only=True)
    notes = serializers.ListField(child=serializers.CharField(), read_only=True)


def put(view: ApiView, request: Request) -> Response:
    """Make the fleet what the document says, all of it or nothing; the same document twice changes nothing."""
    flags = {name: flag(request, name) for name in _FLAGS}
    outcome = apply.apply_text(
        principal_of(request).actor,
        str(request.data),
        may_set_prices=operator_rights.may_set_prices(principal_of(request)),
        **flags,
    )
    return Response(OutcomeSerializer(outcome).data)


describe = extend_schema(
    operation_id="apply_fleet",
    parameters=_PARAMETERS,
    request={YAML: OpenApiTypes.OBJECT, "application/json": OpenApiTypes.OBJECT},
    responses={200: OutcomeSerializer, **error_responses(400, 403)},
)


class DocumentView(ApiView):
    """The fleet as a document."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_fleet_document", responses={(200, YAML): OpenApiTypes.STR, **error_responses(403)})
    def get(self, request: Request) -> HttpResponse:
        """Return the document of the fleet as it is, as YAML: the body of `PUT /api/v1/fleet`."""
        return HttpResponse(present.text(present.read()), content_type=f"{YAML}; charset=utf-8")


class SchemaView(ApiView):
    """What a document may say."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_fleet_schema", responses={200: OpenApiTypes.OBJECT, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """Return the JSON schema of the document."""
        return Response(schema.json_schema())
