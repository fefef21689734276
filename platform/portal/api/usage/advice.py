"""``/api/v1/tenants/{tenant}/advice``: what a tenant could change to have more of its prompts cached."""

from __future__ import annotations

from django.http import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access.principal import Principal, tenant_for
from portal.access.project_scope import project_of
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import CSV_PARAMETER, error_responses, wants_csv
from portal.formats import csv_export, query_params
from portal.reporting.advice import advisor
from portal.reporting.advice.advice_csv import CSV_HEADER, csv_rows
from portal.reporting.advice.advisor import Advice, Report, Traffic
from tenants.database.rls import as_tenant
from tenants.ids import ProjectId, TenantId
from tenants.models import Tenant


class TrafficSerializer(serializers.Serializer[Traffic]):
    """The requests of one key with one model that were looked at."""

    project = serializers.CharField(read_only=True)
    key = serializers.CharField(read_only=True)
    key_id = serializers.UUIDField(read_only=True)
    model = serializers.CharField(source="model_name", read_only=True)
    requests = serializers.IntegerField(read_only=True)
    first_at = serializers.DateTimeField(read_only=True)
    last_at = serializers.DateTimeField(read_only=True)
    is_enough = serializers.BooleanField(read_only=True, help_text="Whether advice may be based on it.")


class AdviceSerializer(serializers.Serializer[Advice]):
    """One thing to change, and its evidence."""

    kind = serializers.ChoiceField(choices=("prefix", "repeats"), read_only=True)
    reason = serializers.CharField(
        read_only=True,
        help_text="The message in which prompts part; or why repeats ran, such as `expired` or `bypass:sampled`.",
    )
    title = serializers.CharField(read_only=True)
    text = serializers.CharField(read_only=True)
    traffic = TrafficSerializer(read_only=True)
    requests = serializers.IntegerField(read_only=True, help_text="Of the requests looked at, those concerned.")
    shared_tokens = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Median of the prompt tokens before the point where prompts part."
    )
    behind_tokens = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Median of the tokens behind it that earlier prompts had too."
    )
    tokens_per_month = serializers.IntegerField(
        read_only=True, help_text="Prompt tokens not computed again, at the usage of the last 30 days."
    )
    pico_per_month = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="At today's prices. null: the model has no price."
    )


class AdviceReportSerializer(serializers.Serializer[Report]):
    """All advice, what saves most first. Money in pico-units of the currency (10⁻¹²)."""

    currency = serializers.CharField(read_only=True)
    requests = serializers.IntegerField(read_only=True, help_text="Looked at.")
    first_at = serializers.DateTimeField(read_only=True, allow_null=True)
    last_at = serializers.DateTimeField(read_only=True, allow_null=True)
    answered_in_month = serializers.IntegerField(
        read_only=True, help_text="Requests of the last 30 days that ran on no engine: prediction hits and coalesced."
    )
    repeats_in_month = serializers.IntegerField(
        read_only=True, help_text="About how many more had the prompt of an earlier one, and ran again."
    )
    is_available = serializers.BooleanField(read_only=True, help_text="false: Redis did not answer; try again.")
    pico_per_month = serializers.IntegerField(read_only=True, help_text="All advice together.")
    advice = AdviceSerializer(many=True, read_only=True)
    traffic = TrafficSerializer(many=True, read_only=True)


class AdviceView(ApiView):
    """Advice for a tenant."""

    @extend_schema(
        operation_id="get_advice",
        parameters=[
            OpenApiParameter("project", str, description="Slug. Default: all that the caller sees."),
            CSV_PARAMETER,
        ],
        responses={
            (200, "application/json"): AdviceReportSerializer,
            (200, "text/csv"): str,
            **error_responses(400, 404),
        },
    )
    def get(self, request: Request, tenant: str) -> HttpResponseBase:
        """Return where prompts part that could share more, and why repeated requests ran again.

        A key that is not tenant-wide gets what concerns its project.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        project_id = _project_id(request, principal, found)
        with as_tenant(TenantId(found.id)):
            report = advisor.read(found, project_id)
        if wants_csv(request):
            rows = csv_rows(report.advice)
            return csv_export.attachment(request._request, f"advice-{found.slug}", CSV_HEADER, rows)
        return Response(AdviceReportSerializer(report).data)


def _project_id(request: Request, principal: Principal, tenant: Tenant) -> ProjectId | None:
    """Return the project that is asked for, or that the key is confined to; None: all. Raises NotFound."""
    named = query_params.text(request.query_params, "project")
    return ProjectId(project_of(principal, tenant, named).id) if named else principal.project_id
