"""``/api/v1/fleet/events``, and the logs of engines. For operators."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import pagination
from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, PERIOD_PARAMETERS, error_responses, page_schema
from portal.fleet import fleet_events
from portal.formats import query_params
from portal.reporting import periods
from tenants.errors import NotFound
from workers.engines import engine_log
from workers.fleet.status import engine_logs
from workers.fleet.status.fleet_events import KINDS, EventFilters, FleetEvent
from workers.models import Replica

_NAMES = ("node", "pool", "deployment", "replica")


class FleetEventSerializer(serializers.Serializer[FleetEvent]):
    """One event."""

    id = serializers.UUIDField(read_only=True)
    at = serializers.DateTimeField(read_only=True)
    kind = serializers.ChoiceField(choices=KINDS, read_only=True)
    what = serializers.CharField(
        read_only=True, help_text="The new state or the action: ready, failed, promoted, quarantined, done, raised …"
    )
    subject = serializers.CharField(read_only=True, help_text="What it happened to, in words.")
    reason = serializers.CharField(read_only=True)
    node = serializers.CharField(read_only=True, help_text="Empty: it is not about one.")
    pool = serializers.CharField(read_only=True, help_text="Empty: it is not about one.")
    deployment = serializers.CharField(read_only=True, help_text="Empty: it is not about one.")
    replica_id = serializers.UUIDField(read_only=True, allow_null=True)
    has_log = serializers.BooleanField(
        read_only=True, help_text="GET /fleet/replicas/{replica}/log?event= has the end of the engine's log."
    )


class EngineLogSerializer(serializers.Serializer[Any]):
    """The end of the log of a replica's engines, without prompts, token ids and keys."""

    replica_id = serializers.UUIDField(read_only=True)
    at = serializers.DateTimeField(read_only=True)
    event_id = serializers.UUIDField(read_only=True, allow_null=True, help_text="null: its node's agent read it now.")
    problem = serializers.CharField(read_only=True, help_text="Why the agent did not; empty if it did.")
    text = serializers.CharField(read_only=True, trim_whitespace=False)


class FleetEventsView(ApiView):
    """What happened in the fleet."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_fleet_events",
        parameters=[
            OpenApiParameter("kind", str, enum=KINDS),
            *(OpenApiParameter(name, str, description="Filters by it.") for name in _NAMES),
            *PERIOD_PARAMETERS,
            *PAGE_PARAMETERS,
        ],
        responses={200: page_schema(FleetEventSerializer, "FleetEventList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List events, newest first. Of a placeholder and of a slot only the last one is kept."""
        page, query = pagination.page_request(request), request.query_params
        period = periods.parse(query, timezone.now())
        kind = query_params.text(query, "kind")
        if kind is not None and kind not in KINDS:
            raise ValidationError({"kind": f"Use one of {', '.join(KINDS)}."})
        filters = EventFilters(
            start=period.start,
            end=period.end,
            kind=kind,
            **{name: query_params.text(query, name) for name in _NAMES},
        )
        found = fleet_events.newest(filters, after=page.after, most=page.limit + 1)
        return Response(pagination.page_document(found, FleetEventSerializer, page.limit))


class EngineLogView(ApiView):
    """The log of a replica's engines."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_engine_log",
        parameters=[
            OpenApiParameter("lines", int, description=f"At most {engine_logs.MOST_LINES}. Default: 200."),
            OpenApiParameter("event", UUID, description="The log as it was at this event, of one with has_log."),
        ],
        responses={200: EngineLogSerializer, **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, replica: UUID) -> Response:
        """Return the last lines, read by the agent of its node, or as stored when an engine of it failed last."""
        row = Replica.objects.select_related("node").filter(id=replica).first()
        if row is None:
            raise NotFound("replica", str(replica))
        lines, event = _lines(request), _event(request)
        found = engine_logs.read(row) if event is None else engine_logs.stored(row, event)
        if found is None:
            raise NotFound("log", str(event))
        document = {
            "replica_id": row.id,
            "at": found.at,
            "event_id": found.event_id,
            "problem": found.problem,
            "text": engine_log.last_lines(found.text, lines),
        }
        return Response(EngineLogSerializer(document).data)


def _lines(request: Request) -> int:
    text = request.query_params.get("lines") or str(engine_logs.LINES)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:5]) <= engine_logs.MOST_LINES):
        raise ValidationError({"lines": f"Use a whole number from 1 to {engine_logs.MOST_LINES}."})
    return int(text)


def _event(request: Request) -> UUID | None:
    text = request.query_params.get("event")
    try:
        return UUID(text) if text else None
    except ValueError:
        raise ValidationError({"event": "Use the id of an event."}) from None
