"""``/api/v1/usage``: single requests, totals, and totals over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing.ledger.latency_buckets import Latency, Percentiles
from billing.ledger.latency_buckets import latency as of_histogram
from billing.ledger.rollups import Sums
from billing.ledger.usage_rows import SHOWN_COLUMNS, Column, UsageRow
from billing.models import UsageRecord
from billing.reports import latency, usage
from billing.reports.usage import Filters
from portal.access.principal import Principal, own_tenants, tenant_for
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import (
    CSV_PARAMETER,
    PAGE_PARAMETERS,
    PERIOD_PARAMETERS,
    error_responses,
    page_schema,
    wants_csv,
)
from portal.formats import csv_export, query_params
from portal.reporting import periods
from portal.reporting.requests import request_filters
from portal.reporting.requests.request_filters import CACHE_RESULTS, ROUTE_REASONS
from portal.reporting.requests.requests_csv import CSV_HEADER, csv_rows
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.isolation import keyspace

#: The values of the parameter ``errors``.
ERRORS = ("true", "false", "platform", "client")
TENANT_PARAMETER = OpenApiParameter(
    "tenant",
    str,
    description="Slug or id. Default: all tenants for operators, its own for a key. A key that is not tenant-wide "
    "gets what belongs to its project.",
)
FILTER_PARAMETERS = [
    OpenApiParameter("model", str),
    OpenApiParameter("project", str, description="Slug or id."),
    OpenApiParameter("key", str, description="Id, name, or the visible beginning such as `hk_8s3k2m5x9q1z`."),
    OpenApiParameter("member", str, description="The person who made the key, or sent it from the playground."),
    OpenApiParameter("end_user", str, description="Whom the caller served, in its words: see end_user."),
    OpenApiParameter("state", str, enum=list(UsageRecord.State.values)),
    OpenApiParameter("status", int, description="HTTP status, such as 429."),
    OpenApiParameter("code", str, description="The error's code, such as `rate_limit_exceeded`."),
    OpenApiParameter("route", str, enum=ROUTE_REASONS, description="Why routing chose the replica."),
    OpenApiParameter("replica", UUID, description="For operators: the replica that answered."),
    OpenApiParameter("cache", str, enum=CACHE_RESULTS, description="Result of the prediction cache."),
    OpenApiParameter("finish", str, description="Why the response ended, such as `length`: see finish_reason."),
    OpenApiParameter(
        "errors",
        str,
        enum=ERRORS,
        description="platform: requests that the platform failed. client: requests that were refused. true: both.",
    ),
    OpenApiParameter("tag", str, description="One of the caller's tags, as name=value, such as `app=search`."),
    OpenApiParameter(
        "request_id",
        str,
        description="A request's id, whatever the period; its first eight or more digits; or the X-Request-ID that its "
        "client sent.",
    ),
]

Found = TypeVar("Found")

_FIELDS: Mapping[type, type[serializers.Field[Any, Any, Any, Any]]] = {
    UUID: serializers.UUIDField,
    str: serializers.CharField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
    bool: serializers.BooleanField,
    datetime: serializers.DateTimeField,
    dict: serializers.DictField,
}


class ReplicaField(serializers.CharField):
    """A replica: its id for operators; for others the name in ``x-replica``, which only their tenant gets.

    By one id two tenants could learn that they share an engine.
    """

    def to_representation(self, value: Any) -> Any:
        """Return the name of the replica of a UsageRow; None if no engine was used."""
        if value.replica_id is None:
            return None
        if self.context.get("shows_replicas"):
            return str(value.replica_id)
        return keyspace.replica_token(value.tenant_id, value.replica_id).decode()


class RequestSerializer(serializers.Serializer[UsageRow]):
    """One request as it was metered and charged. ``prompt_tokens`` are the uncached ones."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return a field for each column of usage rows that the API shows."""
        shown = {column.shown_name: _field(column) for column in SHOWN_COLUMNS if column.shown.in_api}
        doc = "The name in x-replica; for operators the replica's id. null: no engine was used."
        return shown | {"replica_id": ReplicaField(source="*", read_only=True, allow_null=True, help_text=doc)}


class SumsSerializer(serializers.Serializer[Sums]):
    """Totals. Money in pico-units of the currency (10⁻¹²)."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return a field for each sum."""
        return {
            each.name: serializers.IntegerField(read_only=True, **_help(each.metadata.get("doc")))
            for each in fields(Sums)
        }


class PercentilesSerializer(serializers.Serializer[Percentiles]):
    """Percentiles in milliseconds, at most 4.9 % off. null: no request with such a time."""

    requests = serializers.IntegerField(read_only=True)
    p50_ms = serializers.FloatField(read_only=True, allow_null=True)
    p95_ms = serializers.FloatField(read_only=True, allow_null=True)
    p99_ms = serializers.FloatField(read_only=True, allow_null=True)


class LatencySerializer(serializers.Serializer[Latency]):
    """Time to the first token, and time per token after it."""

    ttft = PercentilesSerializer(read_only=True)
    tpot = PercentilesSerializer(read_only=True)


class TenantSumsSerializer(serializers.Serializer[usage.TenantSums]):
    """One tenant's totals."""

    tenant = serializers.CharField(source="slug", read_only=True)
    sums = SumsSerializer(read_only=True)


class ModelSumsSerializer(serializers.Serializer[usage.ModelSums]):
    """One model's totals."""

    model = serializers.CharField(source="model_name", read_only=True)
    sums = SumsSerializer(read_only=True)


class TotalsSerializer(serializers.Serializer[Any]):
    """The totals of a period, in all, by model, and for operators who named no tenant by tenant."""

    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)
    total = SumsSerializer(read_only=True)
    latency = LatencySerializer(read_only=True)
    by_model = ModelSumsSerializer(many=True, read_only=True)
    by_tenant = TenantSumsSerializer(many=True, read_only=True)


class PointSerializer(serializers.Serializer[Any]):
    """One step."""

    starts_at = serializers.DateTimeField(read_only=True)
    sums = SumsSerializer(read_only=True)
    latency = LatencySerializer(read_only=True)


class SeriesSerializer(serializers.Serializer[Any]):
    """A period in equal steps, empty ones too."""

    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)
    step_seconds = serializers.IntegerField(read_only=True)
    points = PointSerializer(many=True, read_only=True)


class UsageView(ApiView):
    """Requests."""

    @extend_schema(
        operation_id="list_usage",
        parameters=[TENANT_PARAMETER, *FILTER_PARAMETERS, *PERIOD_PARAMETERS, *PAGE_PARAMETERS, CSV_PARAMETER],
        responses={
            (200, "application/json"): page_schema(RequestSerializer, "UsageList"),
            (200, "text/csv"): str,
            **error_responses(400, 404),
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """List requests, newest first. CSV returns all requests of the period and needs a tenant."""
        tenant_id = tenant_of(request)
        filters = _filters(request)
        if wants_csv(request):
            if tenant_id is None:
                raise ValidationError({"tenant": "Name the tenant whose requests to export."})
            return csv_export.attachment(request._request, "usage", CSV_HEADER, csv_rows(tenant_id, filters))
        page = pagination.page_request(request)
        rows: Sequence[UsageRow] = read_as(
            tenant_id,
            lambda: usage.requests(tenant_id, before_id=page.after, limit=page.limit + 1, filters=filters),
        )
        return Response(pagination.page_document(rows, RequestSerializer, page.limit, _shown_to(request)))


class UsageRequestView(ApiView):
    """One request."""

    @extend_schema(
        operation_id="get_usage",
        parameters=[TENANT_PARAMETER],
        responses={200: RequestSerializer, **error_responses(400, 404)},
    )
    def get(self, request: Request, request_id: UUID) -> Response:
        """Return one request by its id."""
        tenant_id, project_id = tenant_of(request), principal_of(request).project_id
        found = read_as(tenant_id, lambda: usage.request(tenant_id, request_id, project_id))
        if found is None:
            raise NotFound("request", str(request_id))
        return Response(RequestSerializer(found, context=_shown_to(request)).data)


class TotalsView(ApiView):
    """Sums of a period."""

    @extend_schema(
        operation_id="get_usage_totals",
        parameters=[TENANT_PARAMETER, *PERIOD_PARAMETERS],
        responses={200: TotalsSerializer, **error_responses(400, 404)},
    )
    def get(self, request: Request) -> Response:
        """Return the totals of the period."""
        tenant_id, project_id = tenant_of(request), principal_of(request).project_id
        period = periods.parse(request.query_params, timezone.now())

        def read() -> dict[str, Any]:
            return {
                "start": period.start,
                "end": period.end,
                "total": usage.totals(period, tenant_id, project_id),
                "latency": latency.total(period, tenant_id, project_id),
                "by_model": usage.by_model(period, tenant_id, project_id),
                "by_tenant": usage.by_tenant(period) if tenant_id is None else (),
            }

        return Response(TotalsSerializer(read_as(tenant_id, read)).data)


class SeriesView(ApiView):
    """Sums over time."""

    @extend_schema(
        operation_id="get_usage_series",
        parameters=[
            TENANT_PARAMETER,
            *PERIOD_PARAMETERS,
            OpenApiParameter("step", int, description="Seconds, a multiple of 900. Default: fits the period."),
        ],
        responses={200: SeriesSerializer, **error_responses(400, 404)},
    )
    def get(self, request: Request) -> Response:
        """Return the totals of each step of the period."""
        tenant_id, project_id = tenant_of(request), principal_of(request).project_id
        period = periods.parse(request.query_params, timezone.now())
        step = _step(request, period)

        def read() -> list[dict[str, Any]]:
            if period.preset and "step" not in request.query_params:
                points = usage.series_at(period, tenant_id, period.moments, project_id)
            else:
                points = usage.series(period, tenant_id, step, project_id)
            times = latency.by_moment(period, tenant_id, project_id, [point.starts_at for point in points])
            return [
                {
                    "starts_at": point.starts_at,
                    "sums": point.sums,
                    "latency": of_histogram(times.get(point.starts_at, {})),
                }
                for point in points
            ]

        points = read_as(tenant_id, read)
        document = {"start": period.start, "end": period.end, "step_seconds": step, "points": points}
        return Response(SeriesSerializer(document).data)


def tenant_of(request: Request) -> TenantId | None:
    """Return the tenant of the query; None means all tenants, for operators only.

    A principal with one tenant need not name it; a member of several must. Raises NotFound, ValidationError.
    """
    principal: Principal = principal_of(request)
    named = query_params.text(request.query_params, "tenant")
    if named:
        return TenantId(tenant_for(principal, named).id)
    if principal.is_operator:
        return None
    own = own_tenants(principal)
    if len(own) != 1:
        raise ValidationError({"tenant": "Name one of your tenants."})
    return TenantId(own[0].id)


def read_as(tenant_id: TenantId | None, read: Callable[[], Found]) -> Found:
    """Call ``read`` behind the tenant's row-level security; None, for all tenants, reads without it."""
    if tenant_id is None:
        return read()
    with as_tenant(tenant_id):
        return read()


def _field(column: Column) -> serializers.Field[Any, Any, Any, Any]:
    options: dict[str, Any] = _help(column.shown.doc)
    if column.kind is dict:
        options["child"] = serializers.CharField()
    if column.nullable:
        options["allow_null"] = True
    if column.shown_name != column.name:
        options["source"] = column.name
    return _FIELDS[column.kind](read_only=True, **options)


def _help(doc: str | None) -> dict[str, Any]:
    return {"help_text": doc} if doc else {}


def _shown_to(request: Request) -> dict[str, Any]:
    return {"shows_replicas": principal_of(request).is_operator}


def _step(request: Request, period: periods.Period) -> int:
    """Return the step in seconds. Raises ValidationError for an impossible step and for too many points."""
    text = request.query_params.get("step")
    if text is None:
        return int(period.step / timedelta(seconds=1))
    step = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    grain = int(periods.GRAIN / timedelta(seconds=1))
    if step < grain or step % grain or (period.end - period.start) / timedelta(seconds=step) > periods.MAX_API_POINTS:
        raise ValidationError(
            {"step": f"Use a multiple of {grain} that makes at most {periods.MAX_API_POINTS} points."}
        )
    return step


def _filters(request: Request) -> Filters:
    query = {name: str(request.query_params[name]) for name in request.query_params}
    if query.get("request_id"):
        query["id"] = query["request_id"]
    if query.get("errors") == "1":
        raise ValidationError({"errors": f"Use one of {', '.join(ERRORS)}."})
    filters = request_filters.read(
        query,
        periods.parse(query, timezone.now()),
        tenant_of(request),
        knows_replicas=principal_of(request).is_operator,
    )
    return replace(filters, project_id=_own_project(request, filters.project_ids))


def _own_project(request: Request, asked: Sequence[UUID] | None) -> UUID | None:
    """Return the project that the caller is confined to. Raises NotFound if it asked for another one."""
    own = principal_of(request).project_id
    if own is not None and asked is not None and own not in asked:
        raise NotFound("project", str(request.query_params["project"]))
    return own
