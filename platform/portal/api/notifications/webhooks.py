"""``/api/v1/tenants/{tenant}/webhooks`` and, for the operators' own, ``/api/v1/webhooks``."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from notifications.models import WebhookEndpoint
from notifications.webhooks import deliveries, endpoints
from notifications.webhooks.endpoints import NewSecret
from portal.access.rights import notification_rights
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.notifications.webhook_serializers import (
    ChangeWebhookSerializer,
    DeliverySerializer,
    NewWebhookSerializer,
    ReplayedSerializer,
    ReplaySerializer,
    RotateSecretSerializer,
    WebhookSerializer,
)
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields


class WebhooksView(ApiView):
    """The webhook endpoints of a tenant."""

    @extend_schema(
        operation_id="list_webhooks",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(WebhookSerializer, "WebhookList"), **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, tenant: str | None = None) -> Response:
        """List the endpoints, newest first, without their secrets."""
        owner = notification_rights.owner_to_read(principal_of(request), tenant)
        page = pagination.page_request(request)
        with notification_rights.reading(owner):
            rows = pagination.read_page(endpoints.of(owner), page)
        return Response(pagination.page_document(rows, WebhookSerializer, page.limit))

    @extend_schema(
        operation_id="create_webhook",
        request=WebhookSerializer,
        responses={201: NewWebhookSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str | None = None) -> Response:
        """Create an endpoint for the events from now on. Its secret is shown only in this answer."""
        principal = principal_of(request)
        owner = notification_rights.owner_to_change(principal, tenant)
        wanted = _body(WebhookSerializer, request)
        made = endpoints.create(
            principal.actor, owner, url=wanted["url"], about=wanted["about"], types=wanted["event_types"]
        )
        return Response(_with_secret(made), status=status.HTTP_201_CREATED)


class WebhookView(ApiView):
    """One endpoint."""

    @extend_schema(operation_id="get_webhook", responses={200: WebhookSerializer, **error_responses(403, 404)})
    def get(self, request: Request, webhook: UUID, tenant: str | None = None) -> Response:
        """Return the endpoint without its secret."""
        owner = notification_rights.owner_to_read(principal_of(request), tenant)
        with notification_rights.reading(owner):
            found = endpoints.find(owner, webhook)
        return Response(WebhookSerializer(found).data)

    @extend_schema(
        operation_id="change_webhook",
        request=ChangeWebhookSerializer,
        responses={200: WebhookSerializer, **error_responses(400, 403, 404, 409)},
    )
    def patch(self, request: Request, webhook: UUID, tenant: str | None = None) -> Response:
        """Change the endpoint; `is_paused` keeps its deliveries waiting."""
        found = _to_change(request, webhook, tenant)
        changes = _body(ChangeWebhookSerializer, request)
        return Response(WebhookSerializer(endpoints.change(principal_of(request).actor, found, **changes)).data)

    @extend_schema(operation_id="remove_webhook", responses={204: None, **error_responses(403, 404, 409)})
    def delete(self, request: Request, webhook: UUID, tenant: str | None = None) -> Response:
        """Remove the endpoint with its deliveries and their log."""
        endpoints.remove(principal_of(request).actor, _to_change(request, webhook, tenant))
        return Response(status=status.HTTP_204_NO_CONTENT)


class RotateWebhookSecretView(ApiView):
    """The secret of an endpoint."""

    @extend_schema(
        operation_id="rotate_webhook_secret",
        request=RotateSecretSerializer,
        responses={200: NewWebhookSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, webhook: UUID, tenant: str | None = None) -> Response:
        """Give the endpoint a new secret, shown only in this answer. The one before signs too for a while."""
        found = _to_change(request, webhook, tenant)
        hours = _body(RotateSecretSerializer, request)["overlap_hours"]
        return Response(_with_secret(endpoints.rotate(principal_of(request).actor, found, overlap_hours=hours)))


class ResumeWebhookView(ApiView):
    """An endpoint that is paused, disabled or failing."""

    @extend_schema(
        operation_id="resume_webhook",
        request=None,
        responses={200: WebhookSerializer, **error_responses(403, 404, 409)},
    )
    def post(self, request: Request, webhook: UUID, tenant: str | None = None) -> Response:
        """Send to the endpoint again, from now on; what waits for it is sent too."""
        found = _to_change(request, webhook, tenant)
        return Response(WebhookSerializer(endpoints.resume(principal_of(request).actor, found)).data)


class TestWebhookView(ApiView):
    """A test of an endpoint."""

    @extend_schema(
        operation_id="test_webhook",
        request=None,
        responses={202: DeliverySerializer, **error_responses(403, 404, 409)},
    )
    def post(self, request: Request, webhook: UUID, tenant: str | None = None) -> Response:
        """Send the endpoint a test event; the delivery's log says what came of it."""
        found = _to_change(request, webhook, tenant)
        delivery = deliveries.test(principal_of(request).actor, found)
        return Response(DeliverySerializer(delivery).data, status=status.HTTP_202_ACCEPTED)


class ReplayWebhookView(ApiView):
    """Events to send again."""

    @extend_schema(
        operation_id="replay_webhook",
        request=ReplaySerializer,
        responses={202: ReplayedSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, webhook: UUID, tenant: str | None = None) -> Response:
        """Send one delivery again, or every event from `since` to before `until` that the endpoint has chosen."""
        found, actor = _to_change(request, webhook, tenant), principal_of(request).actor
        wanted = _body(ReplaySerializer, request)
        if ("delivery" in wanted) == ("since" in wanted):
            raise ValidationError({"delivery": "Give either delivery, or since."})
        if "delivery" in wanted:
            deliveries.replay(actor, found, wanted["delivery"])
            return Response({"events": 1}, status=status.HTTP_202_ACCEPTED)
        until: datetime = wanted.get("until", timezone.now())
        count = deliveries.replay_between(actor, found, wanted["since"], until)
        return Response({"events": count}, status=status.HTTP_202_ACCEPTED)


def _to_change(request: Request, webhook: UUID, tenant: str | None) -> WebhookEndpoint:
    return endpoints.find(notification_rights.owner_to_change(principal_of(request), tenant), webhook)


def _body(serializer: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    body = serializer(data=request.data)
    body.is_valid(raise_exception=True)
    reject_unknown_fields(body)
    return dict(body.validated_data)


def _with_secret(made: NewSecret) -> dict[str, Any]:
    return {**WebhookSerializer(made.endpoint).data, "secret": made.secret}


@extend_schema_view(
    get=extend_schema(operation_id="list_operator_webhooks"), post=extend_schema(operation_id="create_operator_webhook")
)
class OperatorWebhooksView(WebhooksView):
    """The operators' endpoints, which get events of every tenant and of the platform."""


@extend_schema_view(
    get=extend_schema(operation_id="get_operator_webhook"),
    patch=extend_schema(operation_id="change_operator_webhook"),
    delete=extend_schema(operation_id="remove_operator_webhook"),
)
class OperatorWebhookView(WebhookView):
    """One of the operators' endpoints."""


@extend_schema_view(post=extend_schema(operation_id="rotate_operator_webhook_secret"))
class OperatorRotateWebhookSecretView(RotateWebhookSecretView):
    """The secret of one of the operators' endpoints."""


@extend_schema_view(post=extend_schema(operation_id="resume_operator_webhook"))
class OperatorResumeWebhookView(ResumeWebhookView):
    """One of the operators' endpoints that is paused, disabled or failing."""


@extend_schema_view(post=extend_schema(operation_id="test_operator_webhook"))
class OperatorTestWebhookView(TestWebhookView):
    """A test of one of the operators' endpoints."""


@extend_schema_view(post=extend_schema(operation_id="replay_operator_webhook"))
class OperatorReplayWebhookView(ReplayWebhookView):
    """Events to send again to one of the operators' endpoints."""
