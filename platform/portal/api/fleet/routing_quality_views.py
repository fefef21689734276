"""``/api/v1/fleet/routing-quality``: why replicas were chosen, and predicted against actual cached tokens."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing.errors import TooManyRequests
from billing.reports import routing_quality
from billing.reports.routing_quality import RoutingGroup
from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PERIOD_PARAMETERS, error_responses
from portal.reporting import periods
from portal.reporting.requests import routing_decisions


class RoutingGroupSerializer(serializers.Serializer[RoutingGroup]):
    """Routed requests of one reason, model or replica. Tokens are those of prompts."""

    reason = serializers.CharField(read_only=True, help_text="Empty: not grouped by it.")
    model = serializers.CharField(read_only=True, help_text="Empty: not grouped by it.")
    replica_id = serializers.UUIDField(read_only=True, allow_null=True)
    requests = serializers.IntegerField(read_only=True)
    prompt_tokens = serializers.IntegerField(read_only=True)
    cached_tokens = serializers.IntegerField(read_only=True, help_text="As engines counted.")
    predicted_tokens = serializers.IntegerField(read_only=True, help_text="As routing expected to be cached.")
    off_tokens = serializers.IntegerField(
        read_only=True, help_text="The differences between the two of each request, added up."
    )
    counted_tokens = serializers.IntegerField(
        read_only=True, help_text="Prompt tokens of the requests with a prediction."
    )


class StickinessSerializer(serializers.Serializer[Any]):
    """Of the newest few thousand decisions: those for sessions with a home, and those that went there."""

    decisions = serializers.IntegerField(read_only=True)
    with_home = serializers.IntegerField(read_only=True)
    at_home = serializers.IntegerField(read_only=True)


class RoutingQualitySerializer(serializers.Serializer[Any]):
    """A period's routing."""

    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)
    total = RoutingGroupSerializer(read_only=True)
    by_reason = RoutingGroupSerializer(many=True, read_only=True)
    by_model = RoutingGroupSerializer(many=True, read_only=True)
    by_replica = RoutingGroupSerializer(many=True, read_only=True)
    stickiness = StickinessSerializer(read_only=True, allow_null=True, help_text="null: Redis is unavailable.")


class RoutingQualityView(ApiView):
    """How good routing is."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_routing_quality",
        parameters=[*PERIOD_PARAMETERS],
        responses={200: RoutingQualitySerializer, **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """Return the routing of a period of at most 2 million requests."""
        period = periods.parse(request.query_params, timezone.now())
        try:
            found = routing_quality.read(period)
        except TooManyRequests as error:
            raise ValidationError({"period": str(error)}) from None
        document = {
            "start": period.start,
            "end": period.end,
            "total": found.total,
            "by_reason": found.by_reason,
            "by_model": found.by_model,
            "by_replica": found.by_replica,
            "stickiness": routing_decisions.stickiness(),
        }
        return Response(RoutingQualitySerializer(document).data)
