"""``/api/v1/reconciliation``: whether engines, usage, the ledger and closed months agree."""

from __future__ import annotations

from django.http import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api import pagination
from portal.api.authentication import OperatorOnly
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import (
    CSV_PARAMETER,
    PAGE_PARAMETERS,
    error_responses,
    page_schema,
    wants_csv,
)
from portal.formats import csv_export
from portal.reporting.boots_csv import CSV_HEADER, csv_rows
from reconciliation import report
from reconciliation.models import BookGap, BootResult
from reconciliation.report import Book, Boot, Report

STATES = tuple(BootResult.State.values)


class BookSerializer(serializers.Serializer[Book]):
    """A tenant's month in which two sums differ. Money in pico-units of the currency (10⁻¹²)."""

    tenant = serializers.CharField(read_only=True, help_text="Its slug; empty for a tenant that does not exist.")
    tenant_id = serializers.UUIDField(read_only=True)
    month = serializers.CharField(
        read_only=True, help_text="YYYY-MM, in UTC; for a closed month in the tenant's time zone."
    )
    book = serializers.ChoiceField(choices=BookGap.Book.values, read_only=True)
    currency = serializers.CharField(read_only=True, help_text="Empty for roll-ups.")
    usage_pico = serializers.IntegerField(
        read_only=True,
        help_text="Of the requests; for a closed month what the ledger has for its statement; for daily roll-ups what "
        "the roll-ups of their days have.",
    )
    book_pico = serializers.IntegerField(read_only=True)
    usage_tokens = serializers.IntegerField(read_only=True, help_text="For daily bypasses requests.")
    book_tokens = serializers.IntegerField(read_only=True)


class BootSerializer(serializers.Serializer[Boot]):
    """One engine process: what it counted, and what is stored of its requests."""

    id = serializers.UUIDField(read_only=True)
    replica_id = serializers.UUIDField(read_only=True)
    generation = serializers.IntegerField(read_only=True)
    model = serializers.CharField(read_only=True)
    state = serializers.ChoiceField(choices=STATES, read_only=True)
    end = serializers.CharField(read_only=True, help_text="orderly or killed; empty while it runs.")
    started_at = serializers.DateTimeField(read_only=True)
    ended_at = serializers.DateTimeField(read_only=True, allow_null=True)
    counted_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="When its counters were read last."
    )
    counted_tokens = serializers.IntegerField(read_only=True, help_text="Prompt and completion tokens by its counters.")
    used_tokens = serializers.IntegerField(read_only=True, help_text="Of requests whose tokens the engine reported.")
    by_purpose = serializers.DictField(
        child=serializers.IntegerField(), read_only=True, help_text="`used_tokens` by tenant, canary, retry, lost."
    )
    cut_requests = serializers.IntegerField(read_only=True, help_text="Requests that were cut short.")
    cut_tokens = serializers.IntegerField(read_only=True, help_text="What is stored of these.")
    unattributed_tokens = serializers.IntegerField(
        read_only=True, help_text="Counted beyond `used_tokens`; at most `allowed_tokens` unless there is a gap."
    )
    allowed_tokens = serializers.IntegerField(read_only=True, help_text="The most that requests cut short may explain.")
    lost_tokens = serializers.IntegerField(read_only=True, help_text="Recorded as lost with a killed process.")
    gap_tokens = serializers.IntegerField(
        read_only=True, help_text="What nothing explains; negative where usage has more than the engine counted."
    )
    note = serializers.CharField(read_only=True)
    candidates = serializers.ListField(
        child=serializers.UUIDField(), read_only=True, help_text="Requests that may explain a gap."
    )


class ReportSerializer(serializers.Serializer[Report]):
    """The last comparison: usage = engines' counters, = ledger, = roll-ups, and ledger = closed months."""

    finished_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="null: none was made yet.")
    compared_boots = serializers.IntegerField(read_only=True)
    boot_gaps = serializers.IntegerField(read_only=True)
    gap_tokens = serializers.IntegerField(read_only=True, help_text="Of all gaps, without sign.")
    lost_tokens = serializers.IntegerField(read_only=True)
    compared_books = serializers.IntegerField(read_only=True)
    book_gaps = serializers.IntegerField(read_only=True)
    books = BookSerializer(many=True, read_only=True)


class ReconciliationView(ApiView):
    """The last comparison."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="get_reconciliation", responses={200: ReportSerializer, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """Return the last comparison and each tenant's month that differs. Operators only."""
        return Response(ReportSerializer(report.read()).data)


class BootsView(ApiView):
    """Engine processes."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_engine_boots",
        parameters=[OpenApiParameter("state", str, enum=list(STATES)), *PAGE_PARAMETERS, CSV_PARAMETER],
        responses={
            (200, "application/json"): page_schema(BootSerializer, "EngineBootList"),
            (200, "text/csv"): str,
            **error_responses(400, 403),
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """List engine processes with the result of their comparison, the newest first; CSV has all. Operators only."""
        state = request.query_params.get("state") or None
        if state is not None and state not in STATES:
            raise ValidationError({"state": f"Use one of {', '.join(STATES)}."})
        if wants_csv(request):
            return csv_export.attachment(request._request, "engine-boots", CSV_HEADER, csv_rows(state))
        page = pagination.page_request(request)
        found = report.page(state=state, before=page.after, limit=page.limit + 1)
        return Response(pagination.page_document(found, BootSerializer, page.limit))
