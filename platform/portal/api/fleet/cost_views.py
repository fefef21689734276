"""``GET /api/v1/fleet/placeholder-costs``: what placeholders cost beside what they saved. For operators."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses
from portal.formats.query_params import text
from workers.fleet.pools import dollars
from workers.serving import placeholder_costs
from workers.serving.placeholder_costs import MOST_DAYS, PlaceholderCost

DEFAULT_DAYS = 30


class PlaceholderCostSerializer(serializers.Serializer[PlaceholderCost]):
    """One pool on one day of UTC; the present day until now."""

    day = serializers.DateField(read_only=True)
    pool = serializers.CharField(read_only=True)
    slot_hours = serializers.FloatField(read_only=True, help_text="Slots held by placeholders.")
    waited_hours = serializers.FloatField(read_only=True, help_text="Of these, while a replica waited for a slot.")
    memory_gib_hours = serializers.FloatField(read_only=True, help_text="Host memory of their processes.")
    promotions = serializers.IntegerField(read_only=True, help_text="Replicas that were started from one.")
    unmeasured = serializers.IntegerField(
        read_only=True, help_text="Those of them of whose revision no cold start was measured; they save nothing here."
    )
    saved_seconds = serializers.FloatField(read_only=True, help_text="How much sooner the promoted replicas served.")
    cost_usd = serializers.SerializerMethodField(
        help_text="Slot hours by the pool's present cost, dollars as text; null if nobody has said it."
    )

    def get_cost_usd(self, cost: PlaceholderCost) -> str | None:
        """Return what the slots cost."""
        return dollars(cost.cost_pico) or None


_DAYS = inline_serializer("PlaceholderCosts", {"data": PlaceholderCostSerializer(many=True)})


class PlaceholderCostsView(ApiView):
    """What placeholders cost."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_placeholder_costs",
        parameters=[
            OpenApiParameter("days", int, description=f"1 to {MOST_DAYS}, the present one included. Default: 30."),
            OpenApiParameter("pool", str, description="Name of a pool. Filters by it."),
        ],
        responses={200: _DAYS, **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List what the placeholders of each pool cost on each day, and what they saved. Newest first."""
        for name in request.query_params:
            if name not in {"days", "pool"}:
                raise ValidationError({name: "There is no such parameter."})
        found = placeholder_costs.newest(_days_of(request), text(request.query_params, "pool"))
        return Response({"data": [PlaceholderCostSerializer(each).data for each in found]})


def _days_of(request: Request) -> int:
    text = request.query_params.get("days", str(DEFAULT_DAYS))
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= MOST_DAYS):
        raise ValidationError({"days": f"Use 1 to {MOST_DAYS}."})
    return int(text)
