"""``/api/v1/usage/savings``: what each cache saved, by tenant, project, key or model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing.reports import savings, usage
from billing.reports.savings import BY, By, Group, Savings
from caching import bypass
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import CSV_PARAMETER, PERIOD_PARAMETERS, error_responses, wants_csv
from portal.api.usage.usage import TENANT_PARAMETER, read_as, tenant_of
from portal.formats import csv_export
from portal.reporting import periods
from portal.reporting.savings_csv import CSV_HEADER, csv_rows
from tenants.ids import TenantId


class PredictionSerializer(serializers.Serializer[savings.Prediction]):
    """Requests and the prediction cache: hits, coalesced, misses, bypasses, and what the first two avoided."""

    hits = serializers.IntegerField(read_only=True)
    coalesced = serializers.IntegerField(read_only=True, help_text="Shared a running identical request's answer.")
    misses = serializers.IntegerField(read_only=True)
    bypassed = serializers.IntegerField(read_only=True)
    tokens = serializers.IntegerField(read_only=True, help_text="Avoided prompt and completion tokens.")
    engine_ms = serializers.IntegerField(read_only=True)
    pico = serializers.IntegerField(
        read_only=True, help_text="The price without the prediction cache, less the charge."
    )


class PrefixSerializer(serializers.Serializer[savings.Prefix]):
    """Prompt tokens found in the engines' prefix cache."""

    requests = serializers.IntegerField(read_only=True)
    tokens = serializers.IntegerField(read_only=True, help_text="Cached prompt tokens.")
    pico = serializers.IntegerField(read_only=True)


class CacheSavingsSerializer(serializers.Serializer[Savings]):
    """The savings of each cache."""

    requests = serializers.IntegerField(read_only=True)
    prediction = PredictionSerializer(read_only=True)
    prefix = PrefixSerializer(read_only=True)


class SavingsGroupSerializer(serializers.Serializer[Group]):
    """One tenant, project, key or model."""

    id = serializers.UUIDField(read_only=True, allow_null=True, help_text="null for a model or an unknown key.")
    name = serializers.CharField(read_only=True)
    savings = CacheSavingsSerializer(read_only=True)


class BypassedSerializer(serializers.Serializer[Any]):
    """Requests that bypassed the prediction cache for one reason."""

    reason = serializers.CharField(read_only=True)
    requests = serializers.IntegerField(read_only=True)
    switch = serializers.CharField(
        read_only=True, allow_null=True, help_text="What would avoid it, as in the header x-cache-switch."
    )


class SavingsReportSerializer(serializers.Serializer[Any]):
    """The savings of a period. Money in pico-units of the currency (10⁻¹²)."""

    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)
    total = CacheSavingsSerializer(read_only=True)
    group_by = serializers.CharField(read_only=True, help_text="tenant, project, key or model.")
    groups = SavingsGroupSerializer(many=True, read_only=True)
    bypasses = BypassedSerializer(many=True, read_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    total: Savings
    groups: tuple[Group, ...]
    bypasses: tuple[savings.BypassCount, ...]


class SavingsView(ApiView):
    """Savings of a period."""

    @extend_schema(
        operation_id="get_usage_savings",
        parameters=[
            TENANT_PARAMETER,
            OpenApiParameter("group_by", str, enum=BY, description="Default: model. tenant is for operators only."),
            *PERIOD_PARAMETERS,
            CSV_PARAMETER,
        ],
        responses={
            (200, "application/json"): SavingsReportSerializer,
            (200, "text/csv"): str,
            **error_responses(400, 404),
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Return what the prediction cache and the prefix cache each saved. A rotated key counts with its successor."""
        tenant_id, project_id = tenant_of(request), principal_of(request).project_id
        period = periods.parse(request.query_params, timezone.now())
        by = _group_by(request, tenant_id)
        found: _Report = read_as(
            tenant_id,
            lambda: _Report(
                total=Savings.of(usage.totals(period, tenant_id, project_id)),
                groups=savings.grouped(period, tenant_id, by, project_id),
                bypasses=savings.bypasses(period, tenant_id, project_id),
            ),
        )
        if wants_csv(request):
            rows = csv_rows(by, found.total, found.groups)
            return csv_export.attachment(request._request, f"savings-by-{by}", CSV_HEADER, rows)
        document = {
            "start": period.start,
            "end": period.end,
            "total": found.total,
            "group_by": by,
            "groups": found.groups,
            "bypasses": [
                {"reason": each.reason, "requests": each.requests, "switch": bypass.switch_of(each.reason)}
                for each in found.bypasses
            ],
        }
        return Response(SavingsReportSerializer(document).data)


def _group_by(request: Request, tenant_id: TenantId | None) -> By:
    grouping = request.query_params.get("group_by") or "model"
    allowed = BY if tenant_id is None else BY[1:]
    if grouping not in allowed:
        raise ValidationError({"group_by": f"Use one of {', '.join(allowed)}."})
    return cast(By, grouping)
