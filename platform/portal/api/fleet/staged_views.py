"""``GET /api/v1/fleet/staged``: models' files in the page cache of nodes. For operators."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses
from workers.fleet.status import staged
from workers.fleet.status.staged import StagedStatus


class StagedSerializer(serializers.Serializer[StagedStatus]):
    """The files of one model on one node that may soon get a replica of it."""

    node = serializers.CharField(read_only=True)
    pool = serializers.CharField(read_only=True)
    model = serializers.CharField(read_only=True)
    bytes_total = serializers.IntegerField(read_only=True)
    bytes_resident = serializers.IntegerField(read_only=True, help_text="Measured, in whole pages.")
    wanted_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="The last request or preparation; the oldest is dropped first."
    )
    note = serializers.CharField(read_only=True, help_text="Why it is not staged; empty if it is.")


class StagedView(ApiView):
    """Models' files in the page cache."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_staged_weights",
        responses={
            200: inline_serializer("StagedWeights", {"data": StagedSerializer(many=True)}),
            **error_responses(403),
        },
    )
    def get(self, request: Request) -> Response:
        """List the files that nodes keep in the page cache, by node, most recently wanted first."""
        return Response({"data": [StagedSerializer(each).data for each in staged.statuses()]})
