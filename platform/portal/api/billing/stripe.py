"""``/api/v1/stripe`` and ``/api/v1/issuers/…/stripe``: accounts at Stripe, invoices, and its webhooks."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound as NoSuchThing
from rest_framework.exceptions import ParseError
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from billing import tasks
from billing.models import StripeConnection, StripeFinding, StripeInvoice
from billing.reports.statements import Month
from billing.stripe import comparison, connections, events, pushing
from billing.stripe.connections import Wanted
from portal.access.principal import tenant_for
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.text_body import BytesParser
from portal.reporting import periods
from tenants.errors import NotFound

log = logging.getLogger(__name__)


class StripeConnectionSerializer(serializers.ModelSerializer[StripeConnection]):
    """An issuer's account at Stripe, without its secrets."""

    issuer = serializers.CharField(source="issuer.name", read_only=True)
    mode = serializers.SerializerMethodField()
    compared_at = serializers.SerializerMethodField()
    findings = serializers.SerializerMethodField(help_text="How many things differed in the last comparison.")

    class Meta:
        model = StripeConnection
        fields = ("issuer", "account_id", "mode", "key_hint", "tax_rate_id", "event_at", "compared_at", "findings")
        read_only_fields = fields

    def get_mode(self, connection: StripeConnection) -> str:
        """Return live or test."""
        return connections.mode(connection)

    def get_compared_at(self, connection: StripeConnection) -> str | None:
        """Return when the last comparison ended."""
        last = comparison.latest(connection, finished=True)
        return last.finished_at.isoformat() if last and last.finished_at else None

    def get_findings(self, connection: StripeConnection) -> int:
        """Return what it found."""
        last = comparison.latest(connection, finished=True)
        return last.findings.count() if last else 0


class StripeConnectSerializer(serializers.Serializer[Any]):
    """What is set; absent fields stay as they are."""

    key = serializers.CharField(max_length=250, required=False, help_text="Secret or restricted key.")
    webhook_secret = serializers.CharField(
        max_length=250, required=False, help_text="Of the webhook endpoint; the earlier one stays valid for a day."
    )
    tax_rate = serializers.CharField(
        max_length=200, required=False, allow_blank=True, help_text="Id of Stripe's tax rate; empty: none."
    )


class StripeInvoiceSerializer(serializers.ModelSerializer[StripeInvoice]):
    """A month that is, or is about to be, Stripe's invoice."""

    month = serializers.CharField(source="period", read_only=True, help_text="As YYYY-MM.")
    total_cents = serializers.IntegerField(read_only=True)
    invoice = serializers.UUIDField(source="mirror_id", read_only=True, allow_null=True, help_text="Hearth's mirror.")

    class Meta:
        model = StripeInvoice
        fields = (
            *("id", "tenant_id", "month", "currency", "total_cents", "external_id", "status", "number", "hosted_url"),
            *("pdf_url", "invoice", "problem", "requested_by", "created_at", "tried_at", "sent_at", "ended_at"),
        )
        read_only_fields = fields


class StripePushSerializer(serializers.Serializer[Any]):
    """Whose closed month becomes Stripe's invoice."""

    tenant = serializers.CharField(max_length=63, help_text="Slug or id.")
    month = serializers.CharField(max_length=7, help_text="As YYYY-MM. It must be closed.")
    issuer = serializers.CharField(max_length=63, default=None, allow_null=True, help_text="Default: the default one.")


class StripeVoidSerializer(serializers.Serializer[Any]):
    """Why."""

    reason = serializers.CharField(max_length=500)


class StripeFindingSerializer(serializers.ModelSerializer[StripeFinding]):
    """Something that differs between Stripe and Hearth."""

    issuer = serializers.CharField(source="comparison.connection.issuer.name", read_only=True)

    class Meta:
        model = StripeFinding
        fields = ("issuer", "kind", "external_id", "ours", "theirs", "text")
        read_only_fields = fields


class StripeFindingsSerializer(serializers.Serializer[Any]):
    """What the last comparison of each account found."""

    findings = StripeFindingSerializer(many=True)


class StripeReceivedSerializer(serializers.Serializer[Any]):
    """The event is stored."""

    new = serializers.BooleanField(help_text="Whether it was not stored before.")


class ConnectionView(ApiView):
    """An issuer's account at Stripe."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="get_stripe_connection",
        responses={200: StripeConnectionSerializer, **error_responses(403, 404, 409)},
    )
    def get(self, request: Request, issuer: str) -> Response:
        """Return the account, without its secrets. Operators only."""
        return Response(StripeConnectionSerializer(connections.find(issuer)).data)

    @extend_schema(
        operation_id="connect_stripe",
        request=StripeConnectSerializer,
        responses={200: StripeConnectionSerializer, **error_responses(400, 403, 404, 409, 503)},
    )
    def patch(self, request: Request, issuer: str) -> Response:
        """Connect an issuer with Stripe, or change what is given. Stripe is asked first. Operators only."""
        found = connections.connect(
            principal_of(request).actor, issuer, Wanted(**_valid(StripeConnectSerializer(data=request.data)))
        )
        return Response(StripeConnectionSerializer(found).data)


class StripeInvoicesView(ApiView):
    """Invoices of Stripe."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_stripe_invoices",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(StripeInvoiceSerializer, "StripeInvoiceList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List what is, or is about to be, at Stripe, the newest first. Operators only."""
        page = pagination.page_request(request)
        rows = pagination.read_page(StripeInvoice.objects.all(), page)
        return Response(pagination.page_document(rows, StripeInvoiceSerializer, page.limit))

    @extend_schema(
        operation_id="push_stripe_invoice",
        request=StripePushSerializer,
        responses={200: StripeInvoiceSerializer, 202: StripeInvoiceSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request) -> Response:
        """Have a closed month made Stripe's invoice: 202, then its state is in the list; 200 if it was begun.

        One that was refused is tried again. Operators only.
        """
        principal, body = principal_of(request), _valid(StripePushSerializer(data=request.data))
        first = periods.parse_month(body["month"], timezone.now())
        month = Month(tenant=tenant_for(principal, body["tenant"]), year=first.year, month=first.month)
        push, new = pushing.begin(principal.actor, month, body["issuer"])
        pushing.request(push)
        transaction.on_commit(go_on)
        return Response(StripeInvoiceSerializer(push).data, status.HTTP_202_ACCEPTED if new else status.HTTP_200_OK)


class VoidStripeInvoiceView(ApiView):
    """An invoice of Stripe that ends."""

    without_key = "it goes on with what Stripe has, and ends nothing twice"
    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="void_stripe_invoice",
        request=StripeVoidSerializer,
        responses={200: StripeInvoiceSerializer, **error_responses(400, 403, 404, 409, 503)},
    )
    def post(self, request: Request, invoice: UUID) -> Response:
        """Void it at Stripe and here, or delete its draft. Operators only."""
        body = _valid(StripeVoidSerializer(data=request.data))
        found = StripeInvoice.objects.select_related("connection__issuer").filter(id=invoice).first()
        if found is None:
            raise NotFound("stripe invoice", str(invoice))
        return Response(StripeInvoiceSerializer(pushing.void(principal_of(request).actor, found, body["reason"])).data)


class FindingsView(ApiView):
    """What differs."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_stripe_findings", responses={200: StripeFindingsSerializer, **error_responses(403)}
    )
    def get(self, request: Request) -> Response:
        """Return what the last comparison of each account found, at most 1,000. Operators only."""
        return Response(StripeFindingsSerializer({"findings": comparison.findings()}).data)


class WebhookView(ApiView):
    """The door of Stripe's webhooks. Who cannot sign learns nothing here."""

    without_key = "Stripe's number of the event does"
    authentication_classes = ()
    permission_classes = (AllowAny,)
    parser_classes = (BytesParser,)

    @extend_schema(
        operation_id="receive_stripe_event",
        auth=[],
        request={"application/json": OpenApiTypes.OBJECT},
        responses={200: StripeReceivedSerializer, **error_responses(400, 404)},
    )
    def post(self, request: Request, issuer: str) -> Response:
        """Store an event, which Stripe has signed. It is processed afterwards."""
        length = request.META.get("CONTENT_LENGTH") or ""
        if not length.isdecimal() or int(length) > events.MOST_BYTES:
            raise ParseError(f"Send at most {events.MOST_BYTES} bytes, with Content-Length.")
        connection = StripeConnection.objects.select_related("issuer").filter(issuer__name=issuer).first()
        if connection is None:
            raise NoSuchThing
        body = request.data if isinstance(request.data, bytes) else b""
        new = events.receive(connection, body, request.headers.get("Stripe-Signature", ""))
        if new:
            go_on()
        return Response({"new": new})


def go_on() -> None:
    """Have the role background process what is new, at once if the broker takes it; else its next tick does."""
    try:
        tasks.process_stripe.apply_async(queue="background", retry=False, expires=60)
    except Exception:
        log.warning("The broker took no task; the next tick processes what Stripe sent.", exc_info=True)


def _valid(body: serializers.Serializer[Any]) -> dict[str, Any]:
    body.is_valid(raise_exception=True)
    reject_unknown_fields(body)
    return dict(body.validated_data)
