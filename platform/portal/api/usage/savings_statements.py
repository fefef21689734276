"""``/api/v1/tenants/{tenant}/savings-statements/{month}``: what the caches saved a tenant in a month."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.reports import savings_statement
from billing.reports.savings_statement import METHOD, Row, SavingsStatement
from portal.access import confinement
from portal.access.principal import tenant_for
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import CSV_PARAMETER, error_responses, wants_csv
from portal.formats import csv_export
from portal.reporting import periods
from tenants.database.rls import as_tenant
from tenants.ids import TenantId


class RowSerializer(serializers.Serializer[Row]):
    """What one cache saved of one model."""

    model = serializers.CharField(source="model_name", read_only=True, help_text="Empty in totals.")
    cache = serializers.CharField(read_only=True, help_text="prediction or prefix.")
    requests = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="That ran on no engine; null for the prefix cache."
    )
    tokens = serializers.IntegerField(read_only=True, help_text="That no engine computed again.")
    saved_pico = serializers.IntegerField(source="pico", read_only=True, help_text="Negative: a hit is priced higher.")
    engine_ms = serializers.IntegerField(read_only=True, allow_null=True, help_text="Not spent; null: not measured.")
    engine_time_is = serializers.CharField(read_only=True, help_text="recorded, estimated or not measured.")


class SavingsStatementSerializer(serializers.Serializer[SavingsStatement]):
    """A month's savings. Money in pico-units of the currency (10⁻¹²)."""

    tenant_id = serializers.UUIDField(read_only=True)
    year = serializers.IntegerField(read_only=True)
    month = serializers.IntegerField(read_only=True)
    timezone = serializers.CharField(read_only=True)
    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)
    currency = serializers.CharField(read_only=True)
    requests = serializers.IntegerField(read_only=True)
    usage_pico = serializers.IntegerField(read_only=True, help_text="As on the statement, at list prices.")
    saved_pico = serializers.IntegerField(read_only=True)
    without_caches_pico = serializers.IntegerField(read_only=True, help_text="What the responses would have cost.")
    engine_ms = serializers.IntegerField(read_only=True, help_text="Not spent, as far as it is known.")
    models = serializers.SerializerMethodField(help_text="Empty for a month that an earlier release closed.")
    totals = serializers.SerializerMethodField(help_text="By cache.")
    method = serializers.SerializerMethodField(help_text="How the figures are computed, in words.")
    project = serializers.CharField(read_only=True, allow_null=True, help_text="Slug; null: the tenant's.")
    closed_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="Since when it is frozen; null: the month is open."
    )
    revision = serializers.IntegerField(read_only=True, allow_null=True)

    @extend_schema_field(RowSerializer(many=True))
    def get_models(self, found: SavingsStatement) -> Any:
        """Return a row per model and cache."""
        return [RowSerializer(row).data for row in savings_statement.rows(found)]

    @extend_schema_field(RowSerializer(many=True))
    def get_totals(self, found: SavingsStatement) -> Any:
        """Return a row per cache."""
        return [RowSerializer(row).data for row in savings_statement.totals(found)]

    def get_method(self, found: SavingsStatement) -> str:
        """Return the method in words."""
        return METHOD


class SavingsStatementView(ApiView):
    """A tenant's savings of a month."""

    @extend_schema(
        operation_id="get_savings_statement",
        parameters=[CSV_PARAMETER],
        responses={
            (200, "application/json"): SavingsStatementSerializer,
            (200, "text/csv"): str,
            **error_responses(400, 403, 404, 409),
        },
    )
    def get(self, request: Request, tenant: str, month: str) -> HttpResponseBase:
        """Return what the caches saved in a month, given as YYYY-MM in the tenant's billing time zone.

        A key that is not tenant-wide gets what its project's requests saved.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        confinement.require_unconfined(principal, found, "A savings statement")
        first = periods.parse_month(month, timezone.now())
        with as_tenant(TenantId(found.id)):
            statement = savings_statement.read(found, first.year, first.month, principal.project)
        if wants_csv(request):
            header, *rows = savings_statement.csv_rows(statement)
            return csv_export.attachment(request._request, f"savings-{found.slug}-{first:%Y-%m}", header, rows)
        return Response(SavingsStatementSerializer(statement).data)
