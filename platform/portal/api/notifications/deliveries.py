"""What was sent to an endpoint, what came back, and the events themselves."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Prefetch
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from notifications.event_types import EVENT_TYPES
from notifications.models import Delivery, DeliveryAttempt, Event
from notifications.webhooks import deliveries, endpoints
from portal.access.rights import notification_rights
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.notifications.webhook_serializers import (
    DeliveryDetailSerializer,
    DeliverySerializer,
    EventTypeSerializer,
    NotificationEventSerializer,
)
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema
from tenants.errors import NotFound

_STATE = OpenApiParameter("state", str, enum=list(Delivery.State.values), description="Default: all.")


class DeliveriesView(ApiView):
    """The deliveries of an endpoint."""

    @extend_schema(
        operation_id="list_webhook_deliveries",
        parameters=[_STATE, *PAGE_PARAMETERS],
        responses={200: page_schema(DeliverySerializer, "DeliveryList"), **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, webhook: UUID, tenant: str | None = None) -> Response:
        """List what was and what will be sent to the endpoint, newest first."""
        owner = notification_rights.owner_to_read(principal_of(request), tenant)
        page = pagination.page_request(request)
        state = request.query_params.get("state", "")
        if state and state not in Delivery.State.values:
            raise ValidationError({"state": f"Use {', '.join(Delivery.State.values)}."})
        with notification_rights.reading(owner):
            found = endpoints.find(owner, webhook)
            rows = pagination.read_page(deliveries.of(found, [state] if state else ()), page)
        return Response(pagination.page_document(rows, DeliverySerializer, page.limit))


class DeliveryView(ApiView):
    """One delivery."""

    @extend_schema(
        operation_id="get_webhook_delivery", responses={200: DeliveryDetailSerializer, **error_responses(403, 404)}
    )
    def get(self, request: Request, webhook: UUID, delivery: UUID, tenant: str | None = None) -> Response:
        """Return the delivery with each attempt and what came back."""
        owner = notification_rights.owner_to_read(principal_of(request), tenant)
        with notification_rights.reading(owner):
            endpoint = endpoints.find(owner, webhook)
            log = Prefetch("log", DeliveryAttempt.objects.order_by("-id"))
            found = deliveries.of(endpoint).prefetch_related(log).filter(id=delivery).first()
            if found is None:
                raise NotFound("delivery", str(delivery))
            return Response(DeliveryDetailSerializer(found).data)


class EventsView(ApiView):
    """The events of a tenant."""

    @extend_schema(
        operation_id="list_events",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(NotificationEventSerializer, "EventList"), **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, tenant: str | None = None) -> Response:
        """List what happened, newest first, of the last 30 days, sent or not."""
        owner = notification_rights.owner_to_read(principal_of(request), tenant)
        page = pagination.page_request(request)
        with notification_rights.reading(owner):
            rows = pagination.read_page(Event.objects.filter(tenant=owner), page)
        return Response(pagination.page_document(rows, NotificationEventSerializer, page.limit))


class EventTypesView(ApiView):
    """The types of events."""

    @extend_schema(
        operation_id="list_event_types",
        responses={200: serializers.ListSerializer(child=EventTypeSerializer()), **error_responses()},
    )
    def get(self, request: Request) -> Response:
        """List every type of event, what it means and what its data holds."""
        found = [{"name": each.name, "about": each.about, "data_fields": dict(each.fields)} for each in EVENT_TYPES]
        return Response(found)


@extend_schema_view(get=extend_schema(operation_id="list_operator_webhook_deliveries"))
class OperatorDeliveriesView(DeliveriesView):
    """The deliveries of one of the operators' endpoints."""


@extend_schema_view(get=extend_schema(operation_id="get_operator_webhook_delivery"))
class OperatorDeliveryView(DeliveryView):
    """One delivery to one of the operators' endpoints."""


@extend_schema_view(get=extend_schema(operation_id="list_platform_events"))
class PlatformEventsView(EventsView):
    """The events that are no tenant's."""
