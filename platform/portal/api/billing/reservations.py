"""``/api/v1/reservations``: slots of deployments that tenants pay for by the hour, and how far they were available."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import models
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access import confinement
from portal.access.principal import Principal, tenant_for
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.text_body import flag
from reserved_capacity import listing, registry
from reserved_capacity.listing import Listed
from reserved_capacity.models import ReservedHour
from reserved_capacity.models.hours import HOUR_SECONDS
from reserved_capacity.registry import Wanted
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import Tenant
from workers import tasks
from workers.fleet import reserved_capacity


class ReservationSerializer(serializers.Serializer[Listed]):
    """A reservation. Times are full hours of UTC."""

    id = serializers.UUIDField(read_only=True)
    tenant = serializers.CharField(source="reservation.tenant.slug", read_only=True)
    deployment = serializers.CharField(source="reservation.deployment", read_only=True)
    models = serializers.ListField(
        child=serializers.CharField(), source="reservation.model_names", read_only=True, help_text="Whose tokens count."
    )
    slots = serializers.IntegerField(source="reservation.slots", read_only=True)
    state = serializers.CharField(read_only=True, help_text="scheduled, current or ended.")
    starts_at = serializers.DateTimeField(source="reservation.starts_at", read_only=True)
    ends_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="null: until it is ended.")
    currency = serializers.CharField(source="reservation.currency", read_only=True)
    slot_hour_pico = serializers.IntegerField(
        source="reservation.slot_hour_pico", read_only=True, help_text="Price of one slot for one hour, in pico-units."
    )
    tokens_per_slot_hour = serializers.IntegerField(source="reservation.tokens_per_slot_hour", read_only=True)
    available = serializers.FloatField(
        read_only=True,
        allow_null=True,
        help_text="Share of the reserved slot time of 30 days that was available; null: none yet.",
    )


class NewReservationSerializer(serializers.Serializer[Any]):
    """Slots to reserve."""

    tenant = serializers.CharField(max_length=63, help_text="Slug or id.")
    deployment = serializers.CharField(max_length=63)
    slots = serializers.IntegerField(min_value=1, max_value=registry.MOST_SLOTS)
    slot_hour_pico = serializers.IntegerField(min_value=0, max_value=registry.HIGHEST_SLOT_HOUR_PICO)
    tokens_per_slot_hour = serializers.IntegerField(
        min_value=0, max_value=registry.MOST_TOKENS_PER_SLOT_HOUR, default=0
    )
    starts_at = serializers.DateTimeField(help_text="A full hour to come.")
    ends_at = serializers.DateTimeField(
        default=None, allow_null=True, help_text="Not included; default: until it is ended."
    )


class EndSerializer(serializers.Serializer[Any]):
    """When a reservation ends."""

    at = serializers.DateTimeField(default=None, allow_null=True, help_text="A full hour; default: the next.")


class HourSerializer(serializers.Serializer[ReservedHour]):
    """An hour of a reservation."""

    starts_at = serializers.DateTimeField(read_only=True)
    slots = serializers.IntegerField(read_only=True)
    available_seconds = serializers.IntegerField(
        read_only=True, help_text="Slots times seconds in which they were available: 3600 for each slot at best."
    )


class ReservationsView(ApiView):
    """The reservations of all tenants."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_reservations",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(ReservationSerializer, "ReservationList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List all tenants' reservations, the newest first. Operators only."""
        return Response(_page(request, listing.read()))

    @extend_schema(
        operation_id="set_reservation",
        request=NewReservationSerializer,
        responses={201: ReservationSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request) -> Response:
        """Reserve slots of a deployment for a tenant. Operators only."""
        principal = principal_of(request)
        wanted = _valid(NewReservationSerializer(data=request.data))
        tenant = tenant_for(principal, wanted.pop("tenant"))
        made = reserved_capacity.reserve(principal.actor, tenant, Wanted(**wanted))
        tasks.hint(())
        return Response(ReservationSerializer(listing.one(made)).data, status=status.HTTP_201_CREATED)


class EndReservationView(ApiView):
    """The end of a reservation."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="end_reservation",
        request=EndSerializer,
        responses={200: ReservationSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, reservation: UUID) -> Response:
        """End a reservation at a full hour to come. Operators only."""
        at = _valid(EndSerializer(data=request.data))["at"]
        ended = registry.end(principal_of(request).actor, reservation, at)
        return Response(ReservationSerializer(listing.one(ended)).data)


class TenantReservationsView(ApiView):
    """The reservations of one tenant."""

    @extend_schema(
        operation_id="list_tenant_reservations",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(ReservationSerializer, "TenantReservationList"), **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List a tenant's reservations, the newest first."""
        found = _whole_tenant(principal_of(request), tenant)
        with as_tenant(TenantId(found.id)):
            return Response(_page(request, listing.read([found.id])))


class ReservedHoursView(ApiView):
    """The hours of a reservation."""

    @extend_schema(
        operation_id="list_reserved_hours",
        parameters=[
            OpenApiParameter("short", bool, description="Only hours in which slots were missing."),
            *PAGE_PARAMETERS,
        ],
        responses={200: page_schema(HourSerializer, "ReservedHourList"), **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, tenant: str, reservation: UUID) -> Response:
        """List the measured hours of a reservation, the newest first: what credits are computed from."""
        found = _whole_tenant(principal_of(request), tenant)
        page, is_short = pagination.page_request(request), flag(request, "short")
        with as_tenant(TenantId(found.id)):
            if not registry.listed([found.id]).filter(id=reservation).exists():
                raise NotFound("reservation", str(reservation))
            hours = ReservedHour.objects.filter(reservation=reservation)
            if is_short:
                hours = hours.filter(available_seconds__lt=HOUR_SECONDS * models.F("slots"))
            return Response(pagination.page_document(pagination.read_page(hours, page), HourSerializer, page.limit))


def _whole_tenant(principal: Principal, slug: str) -> Tenant:
    found = tenant_for(principal, slug)
    confinement.require_whole(principal, found, "A reservation")
    return found


def _page(request: Request, rows: list[Listed]) -> dict[str, Any]:
    page = pagination.page_request(request)
    older = [each for each in rows if page.after is None or each.id < page.after][: page.limit + 1]
    return pagination.page_document(older, ReservationSerializer, page.limit)


def _valid(body: serializers.Serializer[Any]) -> dict[str, Any]:
    body.is_valid(raise_exception=True)
    reject_unknown_fields(body)
    found: dict[str, Any] = body.validated_data
    return found
