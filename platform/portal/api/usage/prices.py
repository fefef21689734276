"""``/api/v1/prices``: price versions, which are added and never changed."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import PriceVersion
from billing.months import previews
from billing.pricing import price_file, prices
from billing.pricing.classes import LIST_PRICE_BP
from billing.pricing.price_file import Change
from billing.pricing.rating import Rates
from portal.access import tenant_reads
from portal.access.principal import Principal, tenant_for
from portal.api import pagination
from portal.api.authentication import OperatorChanges, OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.serializer_fields import SwitchField
from portal.api.text_body import TextParser, flag
from portal.api.usage import models
from portal.api.usage.plans import PreviewSerializer
from portal.formats import query_params

#: Tenants that a preview of an import has.
MAX_PREVIEWED = 200


class PriceSerializer(serializers.Serializer[PriceVersion]):
    """Prices in pico-units of the currency (10⁻¹²) per token: $0.15 a million tokens is 150000."""

    id = serializers.UUIDField(read_only=True)
    book = serializers.CharField(source="book.name", read_only=True)
    tenant_id = serializers.UUIDField(source="book.tenant_id", read_only=True, allow_null=True)
    currency = serializers.CharField(source="book.currency", read_only=True)
    model = serializers.CharField(source="model_name", read_only=True)
    prompt_pico = serializers.IntegerField(read_only=True)
    cached_prompt_pico = serializers.IntegerField(read_only=True)
    completion_pico = serializers.IntegerField(read_only=True)
    cache_write_pico = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text="Of prompt tokens that the engine writes to its cache; null: prompt_pico.",
    )
    reasoning_pico = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Of completion tokens that are reasoning; null: completion_pico."
    )
    prediction_hit_pico = serializers.IntegerField(read_only=True, help_text="Per request, not per token.")
    coalesced_pico = serializers.IntegerField(
        read_only=True, help_text="Per request that shared a running identical request's answer."
    )
    request_pico = serializers.IntegerField(read_only=True, help_text="Per request that an engine ran.")
    low_priority_bp = serializers.IntegerField(
        read_only=True, help_text="What tenants of this priority pay for what engines do, in basis points of the rest."
    )
    high_priority_bp = serializers.IntegerField(read_only=True, help_text="Likewise.")
    effective_from = serializers.DateTimeField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)


class NewPriceSerializer(serializers.Serializer[PriceVersion]):
    """A new price version."""

    model = serializers.CharField(max_length=200)
    tenant = serializers.CharField(
        default=None,
        allow_null=True,
        help_text="Slug or id, for a price of that tenant only; default: for all tenants.",
    )
    prompt_pico = serializers.IntegerField(min_value=0)
    cached_prompt_pico = serializers.IntegerField(min_value=0)
    completion_pico = serializers.IntegerField(min_value=0)
    cache_write_pico = serializers.IntegerField(
        min_value=0,
        default=None,
        allow_null=True,
        help_text="Of prompt tokens that the engine writes to its cache; default: prompt_pico.",
    )
    reasoning_pico = serializers.IntegerField(
        min_value=0,
        default=None,
        allow_null=True,
        help_text="Of completion tokens that are reasoning; default: completion_pico.",
    )
    prediction_hit_pico = serializers.IntegerField(min_value=0, default=0)
    coalesced_pico = serializers.IntegerField(min_value=0, default=0)
    request_pico = serializers.IntegerField(min_value=0, default=0, help_text="Per request that an engine runs.")
    low_priority_bp = serializers.IntegerField(
        min_value=0, default=LIST_PRICE_BP, help_text="In basis points of the prices of what engines do: 8000 is 80 %."
    )
    high_priority_bp = serializers.IntegerField(min_value=0, default=LIST_PRICE_BP, help_text="Likewise.")
    effective_from = serializers.DateTimeField(
        default=None, allow_null=True, help_text="Not in the past; default: now."
    )
    confirm = SwitchField(default=False, help_text="Allow a change by more than a factor of ten.")


class RatesSerializer(serializers.Serializer[Rates]):
    """Prices in pico-units."""

    prompt_pico = serializers.IntegerField(read_only=True)
    cached_prompt_pico = serializers.IntegerField(read_only=True)
    completion_pico = serializers.IntegerField(read_only=True)
    cache_write_pico = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text="Of prompt tokens that the engine writes to its cache; null: prompt_pico.",
    )
    reasoning_pico = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Of completion tokens that are reasoning; null: completion_pico."
    )
    prediction_hit_pico = serializers.IntegerField(read_only=True)
    coalesced_pico = serializers.IntegerField(read_only=True)
    request_pico = serializers.IntegerField(read_only=True)
    low_priority_bp = serializers.IntegerField(read_only=True)
    high_priority_bp = serializers.IntegerField(read_only=True)


class PriceChangeSerializer(serializers.Serializer[Change]):
    """A price that the file sets."""

    line = serializers.IntegerField(read_only=True)
    model = serializers.CharField(source="model_name", read_only=True)
    tenant = serializers.CharField(read_only=True, help_text="Slug; empty: the platform's book.")
    before = RatesSerializer(read_only=True, allow_null=True)
    after = RatesSerializer(read_only=True)
    effective_from = serializers.DateTimeField(read_only=True)


class ImportedSerializer(serializers.Serializer[Any]):
    """What a file changed, or would change."""

    changes = PriceChangeSerializer(many=True)
    unchanged = serializers.IntegerField(help_text="Rows whose price is in force already.")
    notes = serializers.ListField(child=serializers.CharField())
    preview = PreviewSerializer(
        many=True,
        help_text=f"With `dry_run`: the last month of each tenant, by slug, of {MAX_PREVIEWED} at most; else empty.",
    )


class ImportPricesView(ApiView):
    """Prices of many models."""

    permission_classes = (OperatorOnly,)
    parser_classes = (TextParser,)

    @extend_schema(
        operation_id="import_prices",
        parameters=[
            OpenApiParameter("dry_run", bool, description="Change nothing, and preview each tenant's last month."),
            OpenApiParameter("confirm", bool, description="Allow changes of more than tenfold."),
        ],
        request={"text/csv": OpenApiTypes.STR},
        responses={200: ImportedSerializer, **error_responses(400, 403)},
    )
    def post(self, request: Request) -> Response:
        """Set the prices in a CSV file, all of them or none. Operators only."""
        flags = {name: flag(request, name) for name in ("dry_run", "confirm")}
        rows = price_file.read(str(request.data))
        done = price_file.apply(principal_of(request).actor, rows, **flags)
        now, names = timezone.now(), {row.model_name for row in rows}
        tenants = previews.billed_tenants(now)[:MAX_PREVIEWED] if flags["dry_run"] else ()
        document = {
            "changes": done.changes,
            "unchanged": done.unchanged,
            "notes": done.notes,
            "preview": list(previews.of_prices(done.table, names, done.latest, tenants, now)),
        }
        return Response(ImportedSerializer(document).data)


class PricesView(ApiView):
    """The price books."""

    permission_classes = (OperatorChanges,)

    @extend_schema(
        operation_id="list_prices",
        parameters=[OpenApiParameter("model", str), *PAGE_PARAMETERS],
        responses={200: page_schema(PriceSerializer, "PriceList"), **error_responses(400)},
    )
    def get(self, request: Request) -> Response:
        """List price versions, newest first.

        Tenants see the platform's of models that they may call, and their own.
        """
        page = pagination.page_request(request)
        principal = principal_of(request)
        rows = visible(principal)
        if model := query_params.text(request.query_params, "model"):
            rows = rows.filter(model_name=model)
        found = tenant_reads.newest(principal, lambda: pagination.read_page(rows, page), page.limit + 1)
        return Response(pagination.page_document(found, PriceSerializer, page.limit))

    @extend_schema(
        operation_id="set_price",
        request=NewPriceSerializer,
        responses={201: PriceSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request) -> Response:
        """Add a price version. Earlier requests keep their price. Operators only."""
        principal = principal_of(request)
        body = NewPriceSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        wanted = body.validated_data
        rates = Rates(**{name: wanted[name] for name in prices.RATES})
        tenant = tenant_for(principal, wanted["tenant"]) if wanted["tenant"] else None
        version = prices.set_price(
            principal.actor,
            prices.book_of(tenant),
            wanted["model"],
            rates,
            effective_from=wanted["effective_from"],
            confirm=wanted["confirm"],
        )
        return Response(PriceSerializer(version).data, status=status.HTTP_201_CREATED)


def visible(principal: Principal) -> QuerySet[PriceVersion]:
    """Return the price versions that this principal sees.

    Operators see all. Tenants see their own books, and of the platform's the models that they may call.
    """
    every = PriceVersion.objects.select_related("book")
    if principal.tenants is None:
        return every
    names = models.visible(principal).filter(archived_at=None).values("name")
    return every.filter(Q(book__tenant_id=None, model_name__in=names) | Q(book__tenant_id__in=principal.tenants))
