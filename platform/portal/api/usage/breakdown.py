"""``/api/v1/usage/breakdown``: the sums of a period in groups: by tenant, project, key, member, model and so on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing.errors import TooManyRequests
from billing.ledger.latency_buckets import Latency
from billing.ledger.rollups import Sums
from billing.reports import breakdown, latency, usage
from billing.reports.breakdown import BY, By, Group
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import CSV_PARAMETER, PERIOD_PARAMETERS, error_responses, wants_csv
from portal.api.usage.usage import TENANT_PARAMETER, LatencySerializer, SumsSerializer, read_as, tenant_of
from portal.formats import csv_export, query_params
from portal.reporting import member_names, periods
from portal.reporting.breakdown_csv import CSV_HEADER, csv_rows
from tenants.ids import TenantId


class UsageGroupSerializer(serializers.Serializer[Group]):
    """One tenant, project, key, model, day, cost centre or value of a tag."""

    id = serializers.UUIDField(
        read_only=True, allow_null=True, help_text="null for a model, a day, a cost centre, a tag or an unknown key."
    )
    name = serializers.CharField(
        read_only=True,
        help_text="Days as YYYY-MM-DD; empty: usage without a cost centre, an end user or the tag, or of keys that no "
        "person made.",
    )
    sums = SumsSerializer(read_only=True)
    latency = LatencySerializer(read_only=True, allow_null=True, help_text="null for an end user and for a tag.")


class BreakdownSerializer(serializers.Serializer[Any]):
    """The usage of a period in groups. Money in pico-units of the currency (10⁻¹²)."""

    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)
    total = SumsSerializer(read_only=True)
    latency = LatencySerializer(read_only=True)
    group_by = serializers.ChoiceField(choices=BY, read_only=True)
    groups = UsageGroupSerializer(many=True, read_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    total: Sums
    latency: Latency
    groups: tuple[Group, ...]


class BreakdownView(ApiView):
    """Usage of a period in groups."""

    @extend_schema(
        operation_id="get_usage_breakdown",
        parameters=[
            TENANT_PARAMETER,
            OpenApiParameter("group_by", str, enum=BY, description="Default: model. tenant is for operators only."),
            OpenApiParameter("tag", str, description="With group_by=tag: the name of the tag, such as `app`."),
            *PERIOD_PARAMETERS,
            CSV_PARAMETER,
        ],
        responses={
            (200, "application/json"): BreakdownSerializer,
            (200, "text/csv"): str,
            **error_responses(400, 404),
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Return the sums of each group with requests. A rotated key counts with its successor.

        A project without a cost centre of its own has its tenant's; reports use those of today.
        """
        tenant_id, project_id = tenant_of(request), principal_of(request).project_id
        period = periods.parse(request.query_params, timezone.now())
        by, tag = _group_by(request, tenant_id)

        def read() -> _Report:
            groups = breakdown.grouped(period, tenant_id, by, project_id, tag)
            return _Report(
                total=usage.totals(period, tenant_id, project_id),
                latency=latency.total(period, tenant_id, project_id),
                groups=groups,
            )

        try:
            found = read_as(tenant_id, read)
        except TooManyRequests as error:
            raise ValidationError({"period": str(error)}) from None
        found = replace(found, groups=member_names.named(found.groups, by, principal_of(request)))
        if wants_csv(request):
            rows = csv_rows(by, found.total, found.latency, found.groups)
            return csv_export.attachment(request._request, f"usage-by-{by}", CSV_HEADER, rows)
        document = {
            "start": period.start,
            "end": period.end,
            "total": found.total,
            "latency": found.latency,
            "group_by": by,
            "groups": found.groups,
        }
        return Response(BreakdownSerializer(document).data)


def _group_by(request: Request, tenant_id: TenantId | None) -> tuple[By, str]:
    """Return the grouping and the name of the tag. Raises ValidationError."""
    grouping = request.query_params.get("group_by") or "model"
    allowed = BY if tenant_id is None else BY[1:]
    if grouping not in allowed:
        raise ValidationError({"group_by": f"Use one of {', '.join(allowed)}."})
    tag = query_params.text(request.query_params, "tag") or ""
    if (grouping == "tag") != bool(tag):
        raise ValidationError({"tag": "Name a tag with group_by=tag, and only with it, such as tag=app."})
    return cast(By, grouping), tag
