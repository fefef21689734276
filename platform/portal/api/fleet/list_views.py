"""The lists of ``/api/v1/fleet``: slots, placeholders, decisions, rollouts and starts, newest first. For operators."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db.models import F, FilteredRelation, Q
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import pagination
from portal.api.authentication import MayFindTargets, OperatorOnly
from portal.api.fleet.serializers import (
    DecisionSerializer,
    PlaceholderSerializer,
    RolloutSerializer,
    ScrapeTargetSerializer,
    SlotSerializer,
    StartTimeSerializer,
)
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema
from portal.formats import query_params
from workers.fleet import scrape_targets
from workers.fleet.status import history, placeholders, rollout_status, slots
from workers.models import Level, Placeholder, Rollout, ScaleDecision, Slot, StartTime
from workers.serving import start_times

_NODE = OpenApiParameter("node", str, description="Name of a node. Filters by it.")
_DEPLOYMENT = OpenApiParameter("deployment", str, description="Name of a deployment. Filters by it.")


class SlotsView(ApiView):
    """Places for engine ranks."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_slots",
        parameters=[_NODE, OpenApiParameter("health", str, enum=Slot.Health.values), *PAGE_PARAMETERS],
        responses={200: page_schema(SlotSerializer, "SlotList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the slots, each with the replica or placeholder that holds it."""
        page = pagination.page_request(request)
        chosen = _filters(request, {"node": "node__name", "health": "health"}, health=Slot.Health.values)
        rows = (
            slots.slot_rows()
            .filter(**chosen)
            .select_related("node")
            .annotate(lease=FilteredRelation("leases", condition=Q(leases__released_at=None)))
            .annotate(replica=F("lease__replica_id"), placeholder=F("lease__placeholder_id"))
        )
        return Response(pagination.page_document(pagination.read_page(rows, page), SlotSerializer, page.limit))


class PlaceholdersView(ApiView):
    """Warm capacity, now and earlier."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_placeholders",
        parameters=[
            _NODE,
            _DEPLOYMENT,
            OpenApiParameter("state", str, enum=Placeholder.State.values),
            *PAGE_PARAMETERS,
        ],
        responses={200: page_schema(PlaceholderSerializer, "PlaceholderList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List placeholders, including those that were promoted, evicted or lost."""
        page = pagination.page_request(request)
        names = {"node": "node__name", "deployment": "deployment__name", "state": "state"}
        chosen = _filters(request, names, state=Placeholder.State.values)
        rows = pagination.read_page(placeholders.placeholder_rows().filter(**chosen), page)
        measured = start_times.summaries({row.deployment.revision_id for row in rows if row.deployment})
        found = [placeholders.placeholder_status(row, measured) for row in rows]
        return Response(pagination.page_document(found, PlaceholderSerializer, page.limit))


class DecisionsView(ApiView):
    """Scale decisions."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_scale_decisions",
        parameters=[
            _DEPLOYMENT,
            OpenApiParameter("action", str, enum=ScaleDecision.Action.values),
            *PAGE_PARAMETERS,
        ],
        responses={200: page_schema(DecisionSerializer, "DecisionList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List scale decisions, each with its reason and inputs."""
        page = pagination.page_request(request)
        names = {"deployment": "deployment__name", "action": "action"}
        chosen = _filters(request, names, action=ScaleDecision.Action.values)
        rows = ScaleDecision.objects.filter(**chosen).select_related("deployment", "pool")
        found = [history.decision(row) for row in pagination.read_page(rows, page)]
        return Response(pagination.page_document(found, DecisionSerializer, page.limit))


class RolloutsView(ApiView):
    """Rollouts."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_rollouts",
        parameters=[_DEPLOYMENT, OpenApiParameter("state", str, enum=Rollout.State.values), *PAGE_PARAMETERS],
        responses={200: page_schema(RolloutSerializer, "RolloutList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List rollouts: how far they are, what they wait for, and why they ended so."""
        page = pagination.page_request(request)
        chosen = _filters(request, {"deployment": "deployment__name", "state": "state"}, state=Rollout.State.values)
        rows = pagination.read_page(rollout_status.rows().filter(**chosen), page)
        return Response(pagination.page_document(rollout_status.statuses(rows), RolloutSerializer, page.limit))


class StartTimesView(ApiView):
    """How long starts took."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_start_times",
        parameters=[
            OpenApiParameter("model", str, description="Name of a model. Filters by it."),
            OpenApiParameter("pool", str, description="Name of a pool. Filters by it."),
            OpenApiParameter("level", str, enum=Level.values),
            *PAGE_PARAMETERS,
        ],
        responses={200: page_schema(StartTimeSerializer, "StartTimeList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List measured starts. ``GET /api/v1/fleet`` has their medians by level for each deployment."""
        page = pagination.page_request(request)
        names = {"model": "revision__model__name", "pool": "pool__name", "level": "level"}
        chosen = _filters(request, names, level=Level.values)
        rows = StartTime.objects.filter(**chosen).select_related("revision__model", "pool")
        return Response(pagination.page_document(pagination.read_page(rows, page), StartTimeSerializer, page.limit))


class ScrapeTargetsView(ApiView):
    """Targets for Prometheus."""

    permission_classes = (MayFindTargets,)

    @extend_schema(
        operation_id="list_scrape_targets",
        responses={200: ScrapeTargetSerializer(many=True), **error_responses(403)},
    )
    def get(self, request: Request) -> Response:
        """List what Prometheus scrapes, in the form of its ``http_sd_configs``: a bare list, without pages."""
        return Response([ScrapeTargetSerializer(each).data for each in scrape_targets.targets()])


def _filters(request: Request, lookups: dict[str, str], **allowed: Collection[str]) -> dict[str, Any]:
    """Return the lookups of the given parameters. Raises ValidationError for a value that is not allowed."""
    chosen = {}
    for name, lookup in lookups.items():
        value = query_params.text(request.query_params, name)
        if value is not None and value not in allowed.get(name, (value,)):
            raise ValidationError({name: f"Use one of {', '.join(allowed[name])}."})
        if value is not None:
            chosen[lookup] = value
    return chosen
