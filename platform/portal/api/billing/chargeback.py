"""``/api/v1/chargeback``: the journal, the FOCUS export, GL codes, what engines cost, margins. For operators."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from billing.chargeback import costs, focus, gl_codes, journal
from billing.chargeback.costs import DeploymentCost, Margin
from billing.chargeback.journal import Booking
from billing.models import GlCode
from billing.models.chargeback import LONGEST_CODE
from portal.access.principal import tenant_for
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import CSV_PARAMETER, error_responses, reject_unknown_fields, wants_csv
from portal.formats import csv_export, query_params
from portal.reporting import periods
from portal.reporting.billing import engine_costs
from tenants.models import Tenant

_TENANT = OpenApiParameter("tenant", str, description="Slug or id. Default: every tenant.")
_CLASS = "One of prompt, cached_prompt, completion, request, prediction_hit, coalesced, terms, rounding, credit."


class BookingSerializer(serializers.Serializer[Booking]):
    """A booking; one of debit and credit is 0."""

    date = serializers.DateField(read_only=True)
    tenant = serializers.CharField(read_only=True)
    cost_centre = serializers.CharField(read_only=True, help_text="Empty: none is set, or the platform's booking.")
    gl_code = serializers.CharField(read_only=True)
    debit_cents = serializers.IntegerField(read_only=True)
    credit_cents = serializers.IntegerField(read_only=True)
    currency = serializers.CharField(read_only=True)
    text = serializers.CharField(read_only=True)


class GlCodeSerializer(serializers.Serializer[GlCode]):
    """The code of a class of lines and a model. The most exact one counts."""

    line_class = serializers.CharField(
        max_length=16, required=False, default="", allow_blank=True, help_text=f"{_CLASS} Empty: any."
    )
    model = serializers.CharField(
        source="model_name", max_length=200, required=False, default="", allow_blank=True, help_text="Empty: any."
    )
    code = serializers.CharField(max_length=LONGEST_CODE)


class DeploymentCostSerializer(serializers.Serializer[DeploymentCost]):
    """A deployment's month. Money in pico-dollars; null where nobody has said what a slot of its pool costs."""

    deployment = serializers.CharField(read_only=True)
    pools = serializers.ListField(child=serializers.CharField(), read_only=True)
    slot_ms = serializers.IntegerField(read_only=True, help_text="How long its replicas had slots, each slot counted.")
    busy_slot_ms = serializers.IntegerField(read_only=True, help_text="Of that, while a request ran.")
    requests = serializers.IntegerField(read_only=True)
    tokens = serializers.IntegerField(read_only=True, help_text="Prompt, cached and completion tokens.")
    engine_ms = serializers.IntegerField(read_only=True)
    cost_pico = serializers.IntegerField(read_only=True, allow_null=True)
    per_million_pico = serializers.IntegerField(read_only=True, allow_null=True, help_text="Of a million tokens.")
    unused_pico = serializers.IntegerField(read_only=True, allow_null=True, help_text="If no tenant used it.")
    not_spent_engine_ms = serializers.IntegerField(read_only=True, help_text="Saved by the prediction cache.")
    not_spent_slot_ms = serializers.IntegerField(read_only=True, help_text="Slots' time for that, an estimate.")
    not_spent_pico = serializers.IntegerField(read_only=True, allow_null=True)


class MarginSerializer(serializers.Serializer[Margin]):
    """A tenant's use of a model. Revenue in pico-units of the currency, cost in pico-dollars."""

    tenant = serializers.CharField(read_only=True)
    model = serializers.CharField(source="model_name", read_only=True)
    engine_ms = serializers.IntegerField(read_only=True)
    revenue_pico = serializers.IntegerField(read_only=True, help_text="At list prices.")
    currency = serializers.CharField(read_only=True)
    cost_pico = serializers.IntegerField(read_only=True, allow_null=True, help_text="null: unknown.")
    margin_pico = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="null: the cost is unknown, or the currency is not USD."
    )


_COSTS = inline_serializer(
    "EngineCosts", {"month": serializers.CharField(), "data": DeploymentCostSerializer(many=True)}
)
_MARGINS = inline_serializer("Margins", {"month": serializers.CharField(), "data": MarginSerializer(many=True)})
_JOURNAL = inline_serializer(
    "Journal",
    {
        "month": serializers.CharField(help_text="As YYYY-MM."),
        "bookings": BookingSerializer(many=True),
        "open_tenants": serializers.ListField(
            child=serializers.CharField(), help_text="Slugs of tenants whose month is open: they have no bookings."
        ),
    },
)
_FOCUS = inline_serializer(
    "FocusDataset",
    {
        "version": serializers.CharField(),
        "data": serializers.ListField(
            child=serializers.DictField(child=serializers.CharField(allow_null=True)),
            help_text="A row by column; numbers as text.",
        ),
    },
)
_CODES = inline_serializer("GlCodeList", {"data": GlCodeSerializer(many=True)})


class JournalView(ApiView):
    """The journal of a month."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_chargeback_journal",
        parameters=[_TENANT, CSV_PARAMETER],
        responses={
            (200, "application/json"): _JOURNAL,
            (200, "text/csv"): str,
            **error_responses(400, 403, 404, 409),
        },
    )
    def get(self, request: Request, month: str) -> HttpResponseBase:
        """Return the bookings of all months that are closed, from cost centres to the platform. Debits equal credits.

        409 `gl_code_missing`: a line has no code.
        """
        first = periods.parse_month(month, timezone.now())
        found = journal.read(first.year, first.month, _tenant(request))
        if wants_csv(request):
            header, *rows = journal.csv_rows(found)
            return csv_export.attachment(request._request, f"journal-{first:%Y-%m}", header, rows)
        return Response(
            {
                "month": f"{first:%Y-%m}",
                "bookings": [BookingSerializer(each).data for each in found.bookings],
                "open_tenants": list(found.open_tenants),
            }
        )


class FocusView(ApiView):
    """The FOCUS export of a month."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_chargeback_focus",
        parameters=[_TENANT, CSV_PARAMETER],
        responses={(200, "application/json"): _FOCUS, (200, "text/csv"): str, **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, month: str) -> HttpResponseBase:
        """Return all months that are closed as a dataset of FOCUS 1.2."""
        first = periods.parse_month(month, timezone.now())
        found = focus.read(first.year, first.month, _tenant(request))
        if wants_csv(request):
            header, *rows = focus.csv_rows(found)
            return csv_export.attachment(request._request, f"focus-{first:%Y-%m}", header, rows)
        return Response({"version": focus.VERSION, "data": [focus.document(row) for row in found]})


class CostsView(ApiView):
    """What engines cost."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_chargeback_costs",
        parameters=[CSV_PARAMETER],
        responses={(200, "application/json"): _COSTS, (200, "text/csv"): str, **error_responses(400, 403, 409)},
    )
    def get(self, request: Request, month: str) -> HttpResponseBase:
        """Return what each deployment cost in a month of UTC, used or not, and for a million tokens.

        409 `requests_deleted`: who used which engine is not known any more.
        """
        first = periods.parse_month(month, timezone.now())
        found = engine_costs.read(first.year, first.month)
        if wants_csv(request):
            header, *rows = costs.costs_csv(found)
            return csv_export.attachment(request._request, f"costs-{first:%Y-%m}", header, rows)
        data = [DeploymentCostSerializer(each).data for each in found.deployments]
        return Response({"month": f"{first:%Y-%m}", "data": data})


class MarginView(ApiView):
    """Margins."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_chargeback_margin",
        parameters=[CSV_PARAMETER],
        responses={(200, "application/json"): _MARGINS, (200, "text/csv"): str, **error_responses(400, 403, 409)},
    )
    def get(self, request: Request, month: str) -> HttpResponseBase:
        """Return revenue minus the share of what engines cost, by tenant and model, in a month of UTC."""
        first = periods.parse_month(month, timezone.now())
        found = engine_costs.read(first.year, first.month)
        if wants_csv(request):
            header, *rows = costs.margin_csv(found)
            return csv_export.attachment(request._request, f"margin-{first:%Y-%m}", header, rows)
        return Response({"month": f"{first:%Y-%m}", "data": [MarginSerializer(each).data for each in found.margins]})


class GlCodesView(ApiView):
    """Codes of the general ledger."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="list_gl_codes", responses={200: _CODES, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """List the codes, by class and model."""
        return Response({"data": [GlCodeSerializer(row).data for row in gl_codes.rows()]})

    @extend_schema(
        operation_id="set_gl_code",
        request=GlCodeSerializer,
        responses={200: GlCodeSerializer, **error_responses(400, 403)},
    )
    def put(self, request: Request) -> Response:
        """Set the code of a class and a model."""
        body = GlCodeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        given: dict[str, Any] = body.validated_data
        row = gl_codes.set_code(
            principal_of(request).actor, given["code"], line_class=given["line_class"], model_name=given["model_name"]
        )
        return Response(GlCodeSerializer(row).data)

    @extend_schema(
        operation_id="remove_gl_code",
        parameters=[
            OpenApiParameter("line_class", str, description="Default: the code of any class."),
            OpenApiParameter("model", str, description="Default: the code of any model."),
        ],
        responses={204: None, **error_responses(400, 403, 404)},
    )
    def delete(self, request: Request) -> Response:
        """Remove the code of a class and a model."""
        query = request.query_params
        gl_codes.remove(
            principal_of(request).actor,
            line_class=query_params.text(query, "line_class") or "",
            model_name=query_params.text(query, "model") or "",
        )
        return Response(status=status.HTTP_204_NO_CONTENT)


def _tenant(request: Request) -> Tenant | None:
    named = query_params.text(request.query_params, "tenant")
    return tenant_for(principal_of(request), named) if named else None
