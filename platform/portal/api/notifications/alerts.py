"""``/api/v1/alerts``: what needs an operator."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from alerting import open_alerts
from portal.api import pagination
from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema

_STATES = {"open": True, "resolved": False, "all": None}


class OperatorAlertSerializer(serializers.Serializer[Any]):
    """An alert that was raised."""

    id = serializers.UUIDField(read_only=True)
    kind = serializers.CharField(read_only=True)
    severity = serializers.CharField(read_only=True, help_text="critical or warning.")
    about = serializers.CharField(read_only=True)
    summary = serializers.CharField(read_only=True)
    action = serializers.CharField(read_only=True, help_text="What to do.")
    raised_at = serializers.DateTimeField(read_only=True)
    resolved_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="null: it is open.")


class AlertsView(ApiView):
    """Alerts."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_alerts",
        parameters=[
            OpenApiParameter("state", str, enum=list(_STATES), description="Default: open."),
            *PAGE_PARAMETERS,
        ],
        responses={200: page_schema(OperatorAlertSerializer, "AlertList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List what needs an operator, newest first; with `state` what was resolved in the last 30 days."""
        state = request.query_params.get("state", "open")
        if state not in _STATES:
            raise ValidationError({"state": f"Use {', '.join(_STATES)}."})
        page = pagination.page_request(request)
        rows = pagination.read_page(open_alerts.rows(is_open=_STATES[state]), page)
        shown = [open_alerts.shown(row) for row in rows]
        return Response(pagination.page_document(shown, OperatorAlertSerializer, page.limit))
