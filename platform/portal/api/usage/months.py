"""``/api/v1/…/months``: closed months, closing one, and reopening it."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import BillingMonth
from billing.months import closing, overview, reopening
from billing.reports.statements import Month
from portal.access import confinement
from portal.access.principal import tenant_for
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import (
    CSV_PARAMETER,
    PAGE_PARAMETERS,
    error_responses,
    page_schema,
    reject_unknown_fields,
    wants_csv,
)
from portal.formats import csv_export
from portal.reporting import periods
from portal.reporting.billing import months_csv
from tenants.database.rls import as_tenant
from tenants.ids import TenantId

#: What only operators see of a closing.
PEOPLE = ("closed_by", "reopen_reason", "reopen_requested_by", "reopened_by")
_FOR_OPERATORS = "For operators; else null."


class BillingMonthSerializer(serializers.Serializer[BillingMonth]):
    """One closing of a tenant's month. Its lines are on the statement of that month."""

    id = serializers.UUIDField(read_only=True)
    tenant_id = serializers.UUIDField(read_only=True)
    month = serializers.CharField(source="name", read_only=True, help_text="As YYYY-MM.")
    revision = serializers.IntegerField(read_only=True, help_text="How often the month was closed by then.")
    state = serializers.ChoiceField(
        choices=("closed", "reopened"), read_only=True, help_text="reopened: open again; a later closing replaces it."
    )
    timezone = serializers.CharField(read_only=True)
    start = serializers.DateTimeField(source="starts_at", read_only=True)
    end = serializers.DateTimeField(source="ends_at", read_only=True)
    currency = serializers.CharField(read_only=True)
    amount_pico = serializers.IntegerField(read_only=True, help_text="The sum of its lines and of the ledger.")
    closed_at = serializers.DateTimeField(read_only=True)
    closed_by = serializers.CharField(read_only=True, allow_null=True, help_text=_FOR_OPERATORS)
    reopen_reason = serializers.CharField(read_only=True, allow_null=True, help_text=_FOR_OPERATORS)
    reopen_requested_by = serializers.CharField(read_only=True, allow_null=True, help_text=_FOR_OPERATORS)
    reopen_requested_at = serializers.DateTimeField(read_only=True, allow_null=True)
    reopened_by = serializers.CharField(read_only=True, allow_null=True, help_text=_FOR_OPERATORS)
    reopened_at = serializers.DateTimeField(read_only=True, allow_null=True)

    def to_representation(self, instance: BillingMonth) -> dict[str, Any]:
        """Return the document, without people's names and words unless an operator reads it."""
        found: dict[str, Any] = super().to_representation(instance)
        return found if self.context.get("for_operator") else found | dict.fromkeys(PEOPLE)


class StandingSerializer(serializers.Serializer[overview.Standing]):
    """Where a tenant's month stands."""

    tenant = serializers.CharField(source="month.tenant.slug", read_only=True)
    tenant_id = serializers.UUIDField(source="month.tenant.id", read_only=True)
    month = serializers.CharField(source="month.name", read_only=True)
    state = serializers.ChoiceField(choices=("open", "closed", "reopened"), read_only=True)
    closes_at = serializers.DateTimeField(read_only=True, help_text="From then on it may be closed.")
    last = BillingMonthSerializer(read_only=True, allow_null=True, help_text="Its last closing; null: none.")


class CloseSerializer(serializers.Serializer[Any]):
    """What a closing need not wait for."""

    without_nodes = serializers.ListField(
        child=serializers.CharField(max_length=253),
        default=list,
        max_length=100,
        help_text="Hosts that are lost for good, whose records of the month are not waited for.",
    )


class ReopenSerializer(serializers.Serializer[Any]):
    """Why."""

    reason = serializers.CharField(max_length=reopening.LONGEST_REASON)


class TenantMonthsView(ApiView):
    """A tenant's closings."""

    @extend_schema(
        operation_id="list_tenant_months",
        parameters=[*PAGE_PARAMETERS, CSV_PARAMETER],
        responses={
            (200, "application/json"): page_schema(BillingMonthSerializer, "BillingMonthList"),
            (200, "text/csv"): str,
            **error_responses(400, 403, 404),
        },
    )
    def get(self, request: Request, tenant: str) -> HttpResponseBase:
        """List a tenant's closed months, the last closing first; CSV has all. A month without a closing is open."""
        principal, page = principal_of(request), pagination.page_request(request)
        found = tenant_for(principal, tenant)
        confinement.require_whole(principal, found, "A month")
        if wants_csv(request):
            with as_tenant(TenantId(found.id)):
                every = list(BillingMonth.objects.filter(tenant_id=found.id).order_by("-id"))
            cells = months_csv.csv_rows(every, for_operator=principal.is_operator)
            return csv_export.attachment(request._request, f"months-{found.slug}", months_csv.CSV_HEADER, cells)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(BillingMonth.objects.filter(tenant_id=found.id), page)
        context = {"for_operator": principal.is_operator}
        return Response(pagination.page_document(rows, BillingMonthSerializer, page.limit, context))


class MonthView(ApiView):
    """One month of every tenant."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_month",
        parameters=[*PAGE_PARAMETERS, CSV_PARAMETER],
        responses={
            (200, "application/json"): page_schema(StandingSerializer, "MonthStandingList"),
            (200, "text/csv"): str,
            **error_responses(400, 403),
        },
    )
    def get(self, request: Request, month: str) -> HttpResponseBase:
        """List where the month, given as YYYY-MM, stands for each tenant, the newest tenant first. Operators only.

        CSV has all tenants, by name.
        """
        page, first = pagination.page_request(request), periods.parse_month(month, timezone.now())
        if wants_csv(request):
            cells = months_csv.standings_rows(overview.read(first.year, first.month))
            name = f"months-{first:%Y-%m}"
            return csv_export.attachment(request._request, name, months_csv.STANDINGS_HEADER, cells)
        every = sorted(overview.read(first.year, first.month), key=lambda each: each.id, reverse=True)
        rows = [each for each in every if page.after is None or each.id < page.after][: page.limit + 1]
        return Response(pagination.page_document(rows, StandingSerializer, page.limit, {"for_operator": True}))


class CloseMonthView(ApiView):
    """Closing a month."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="close_month",
        request=CloseSerializer,
        responses={200: BillingMonthSerializer, 201: BillingMonthSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, month: str) -> Response:
        """Freeze the lines of a tenant's month; 200 if it is closed already, which changes nothing. Operators only."""
        body = _valid(CloseSerializer(data=request.data))
        closed, new = closing.close(
            principal_of(request).actor, _month(request, tenant, month), without_nodes=body["without_nodes"]
        )
        return _response(closed, status.HTTP_201_CREATED if new else status.HTTP_200_OK)


class ReopenMonthView(ApiView):
    """Requesting that a month is reopened."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="request_month_reopening",
        request=ReopenSerializer,
        responses={200: BillingMonthSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, month: str) -> Response:
        """Request that a closed month is reopened; another operator confirms it. Operators only."""
        body = _valid(ReopenSerializer(data=request.data))
        asked = reopening.request(principal_of(request).actor, _month(request, tenant, month), body["reason"])
        return _response(asked, status.HTTP_200_OK)


class ConfirmReopeningView(ApiView):
    """Confirming it."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="confirm_month_reopening",
        request=None,
        responses={200: BillingMonthSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, month: str) -> Response:
        """Reopen a month that another operator requested to reopen. Operators only."""
        opened = reopening.confirm(principal_of(request).actor, _month(request, tenant, month))
        return _response(opened, status.HTTP_200_OK)


def _month(request: Request, tenant: str, month: str) -> Month:
    found = tenant_for(principal_of(request), tenant)
    first = periods.parse_month(month, timezone.now())
    return Month(tenant=found, year=first.year, month=first.month)


def _valid(body: serializers.Serializer[Any]) -> dict[str, Any]:
    body.is_valid(raise_exception=True)
    reject_unknown_fields(body)
    found: dict[str, Any] = body.validated_data
    return found


def _response(row: BillingMonth, code: int) -> Response:
    return Response(BillingMonthSerializer(row, context={"for_operator": True}).data, status=code)
