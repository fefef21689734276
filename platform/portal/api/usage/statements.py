"""``/api/v1/tenants/{tenant}/statements/{month}``: a tenant's monthly statement, line by line."""

from __future__ import annotations

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.plans.calculation import TermsLine
from billing.reports import statements
from portal.access import confinement
from portal.access.principal import tenant_for
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import CSV_PARAMETER, error_responses, wants_csv
from portal.formats import csv_export
from portal.reporting import periods
from tenants.database.rls import as_tenant
from tenants.ids import TenantId


class LineSerializer(serializers.Serializer[statements.Line]):
    """The tokens or requests of one class, model and price."""

    model = serializers.CharField(source="model_name", read_only=True)
    token_class = serializers.CharField(
        read_only=True,
        help_text="prompt, cache_write, cached_prompt, completion, reasoning, request, prediction_hit or coalesced.",
    )
    unit = serializers.CharField(read_only=True, help_text="token or request.")
    quantity = serializers.IntegerField(read_only=True)
    unit_price_pico = serializers.IntegerField(read_only=True)
    amount_pico = serializers.IntegerField(read_only=True)
    amount_cents = serializers.IntegerField(
        read_only=True, help_text="In the currency's minor units, rounded once, half to even."
    )
    adjusts_month = serializers.CharField(
        read_only=True,
        allow_null=True,
        help_text="The closed month, as YYYY-MM, whose late requests this line charges; null: the statement's own.",
    )
    priority = serializers.CharField(
        read_only=True, help_text="low or high where the price is one of that priority; else standard."
    )


class TermsLineSerializer(serializers.Serializer[TermsLine]):
    """What one of the terms of the tenant's plan, or reserved capacity, adds or takes off."""

    kind = serializers.CharField(
        read_only=True,
        help_text="allowance, tier, discount or minimum of a plan; reserved, not_available or reserved_tokens.",
    )
    text = serializers.CharField(read_only=True)
    tokens = serializers.IntegerField(read_only=True, allow_null=True, help_text="For how many; null: not by tokens.")
    amount_pico = serializers.IntegerField(read_only=True, help_text="Negative: less is due.")
    amount_cents = serializers.IntegerField(
        read_only=True, help_text="In the currency's minor units, rounded once, half to even."
    )


class SavingsSerializer(serializers.Serializer[statements.Savings]):
    """What each cache saved."""

    prediction_hits = serializers.IntegerField(read_only=True)
    coalesced_requests = serializers.IntegerField(read_only=True)
    prediction_tokens = serializers.IntegerField(read_only=True, help_text="Avoided by hits and coalesced requests.")
    prediction_engine_ms = serializers.IntegerField(read_only=True)
    prediction_pico = serializers.IntegerField(read_only=True)
    prefix_tokens = serializers.IntegerField(read_only=True)
    prefix_pico = serializers.IntegerField(read_only=True)


class StatementSerializer(serializers.Serializer[statements.Statement]):
    """A monthly statement. The total is the sum of the lines and terms in cents; the ledger has that sum in pico-units.

    The ledger has the terms once the month is closed.
    """

    tenant_id = serializers.UUIDField(read_only=True)
    year = serializers.IntegerField(read_only=True)
    month = serializers.IntegerField(read_only=True)
    timezone = serializers.CharField(read_only=True)
    start = serializers.DateTimeField(read_only=True)
    end = serializers.DateTimeField(read_only=True)
    currency = serializers.CharField(read_only=True)
    lines = LineSerializer(many=True, read_only=True)
    plan = serializers.CharField(read_only=True, allow_null=True, help_text="The tenant's plan; null: none.")
    terms = TermsLineSerializer(
        many=True, read_only=True, help_text="An estimate while the month is open. One project has none."
    )
    savings = SavingsSerializer(read_only=True)
    requests = serializers.IntegerField(read_only=True)
    free_requests = serializers.IntegerField(read_only=True)
    unrated_requests = serializers.IntegerField(read_only=True)
    usage_pico = serializers.IntegerField(read_only=True, help_text="The lines at list prices, without the terms.")
    amount_pico = serializers.IntegerField(read_only=True)
    amount_cents = serializers.IntegerField(read_only=True)
    rounding_pico = serializers.IntegerField(read_only=True)
    ledger_pico = serializers.IntegerField(read_only=True, allow_null=True, help_text="null for one project.")
    equals_ledger = serializers.BooleanField(read_only=True, allow_null=True, help_text="null for one project.")
    project = serializers.CharField(
        read_only=True, allow_null=True, help_text="Slug of the project whose requests it covers; null: the tenant's."
    )
    closed_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="When the month was closed; null: it is open and may change."
    )
    revision = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="How often the month was closed; null: it is open."
    )


class StatementView(ApiView):
    """A tenant's month."""

    @extend_schema(
        operation_id="get_statement",
        parameters=[CSV_PARAMETER],
        responses={
            (200, "application/json"): StatementSerializer,
            (200, "text/csv"): str,
            **error_responses(400, 403, 404, 409),
        },
    )
    def get(self, request: Request, tenant: str, month: str) -> HttpResponseBase:
        """Return the statement of a month, given as YYYY-MM in the tenant's billing time zone.

        A key that is not tenant-wide gets what its project's requests cost.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        confinement.require_unconfined(principal, found, "A statement")
        first = periods.parse_month(month, timezone.now())
        with as_tenant(TenantId(found.id)):
            statement = statements.statement(TenantId(found.id), first.year, first.month, principal.project)
        if wants_csv(request):
            header, *rows = statements.csv_rows(statement)
            return csv_export.attachment(request._request, f"statement-{found.slug}-{first:%Y-%m}", header, rows)
        return Response(StatementSerializer(statement).data)
