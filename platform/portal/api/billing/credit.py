"""``/api/v1/tenants/{tenant}/credit``: what a tenant has paid in advance or was given, and changes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from billing.accounts import account, balance, credits
from billing.accounts.balance import Balance, Part
from billing.accounts.credits import NewCredit
from billing.budgets import spending
from billing.invoices import crediting, registry
from billing.models import CreditEntry, CreditRequest
from billing.models.credits import LONGEST_KEY, LONGEST_REASON, LONGEST_REFERENCE
from portal.access.principal import Principal, tenant_for
from portal.api import pagination
from portal.api.authentication import OperatorChanges, OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import (
    CSV_PARAMETER,
    PAGE_PARAMETERS,
    error_responses,
    page_schema,
    reject_unknown_fields,
    wants_csv,
)
from portal.api.serializer_fields import IdField
from portal.errors import BadQuery, NotPermitted
from portal.formats import csv_export
from portal.reporting.billing import credit_csv
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant

KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    required=True,
    description=f"Your name for this change, at most {LONGEST_KEY} printable ASCII characters. The same again returns "
    "the first one.",
)
_SIGNED = "Pico-units of the currency (10⁻¹²). Negative: the tenant has less credit."


class PartSerializer(serializers.Serializer[Part]):
    """What is left of a promotion."""

    promotion_id = serializers.UUIDField(read_only=True)
    left_pico = serializers.IntegerField(read_only=True)
    expires_at = serializers.DateTimeField(read_only=True)


class CreditSerializer(serializers.Serializer[Balance]):
    """A tenant's credit, in pico-units of its currency. Promotions stand in the order in which they are used."""

    tenant = serializers.CharField(read_only=True)
    currency = serializers.CharField(read_only=True)
    total_pico = serializers.IntegerField(read_only=True)
    prepaid_pico = serializers.IntegerField(read_only=True, help_text="Paid in advance and not used.")
    promotion_pico = serializers.IntegerField(read_only=True, help_text="Given and not used.")
    promotions = PartSerializer(many=True, read_only=True)
    mode = serializers.ChoiceField(choices=account.MODES, read_only=True)
    available_pico = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text="Of a prepaid tenant: what it may still spend, after all stored usage that is not paid. Running "
        "requests hold more.",
    )


class CreditNoteLineSerializer(serializers.Serializer[Any]):
    """A line of a credit note."""

    text = serializers.CharField(read_only=True)
    net_cents = serializers.IntegerField(read_only=True, help_text="Without tax.")


class CreditRequestSerializer(serializers.Serializer[CreditRequest]):
    """A change that was asked for."""

    id = serializers.UUIDField(read_only=True)
    tenant_id = serializers.UUIDField(read_only=True)
    key = serializers.CharField(read_only=True)
    kind = serializers.ChoiceField(choices=CreditRequest.Kind.choices, read_only=True)
    amount_pico = serializers.IntegerField(read_only=True, help_text=_SIGNED)
    currency = serializers.CharField(read_only=True)
    expires_at = serializers.DateTimeField(read_only=True, allow_null=True)
    reason = serializers.CharField(read_only=True)
    reference = serializers.CharField(read_only=True)
    refers_to = serializers.UUIDField(source="refers_to_id", read_only=True, allow_null=True)
    invoice = serializers.UUIDField(
        source="invoice_id", read_only=True, allow_null=True, help_text="Of a return and a credit note: its invoice."
    )
    tax_pico = serializers.IntegerField(read_only=True, help_text="Of both: the tax within the amount.")
    lines = CreditNoteLineSerializer(
        many=True, read_only=True, allow_null=True, help_text="Of a credit note: what is credited, without tax."
    )
    credit_note = serializers.CharField(
        source="credit_note.number", default=None, read_only=True, allow_null=True, help_text="The number that it got."
    )
    state = serializers.ChoiceField(
        choices=CreditRequest.State.choices, read_only=True, help_text="pending: it waits for a second person."
    )
    entry = serializers.SerializerMethodField(help_text="The entry that was posted; null: none was.")
    requested_by = serializers.CharField(read_only=True)
    decided_by = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    decided_at = serializers.DateTimeField(read_only=True, allow_null=True)

    def get_entry(self, request: CreditRequest) -> UUID | None:
        """Return the entry's id."""
        entry: CreditEntry | None = getattr(request, "entry", None)
        return None if entry is None else entry.id


class CreditEntrySerializer(serializers.Serializer[CreditEntry]):
    """One change of a tenant's credit. Entries never change; another one takes one back."""

    id = serializers.UUIDField(read_only=True)
    kind = serializers.ChoiceField(choices=CreditEntry.Kind.choices, read_only=True)
    amount_pico = serializers.IntegerField(read_only=True, help_text=_SIGNED)
    currency = serializers.CharField(read_only=True)
    promotion_id = serializers.UUIDField(read_only=True, allow_null=True, help_text="null: prepaid.")
    expires_at = serializers.DateTimeField(read_only=True, allow_null=True)
    month = serializers.CharField(
        source="closing.name", default=None, read_only=True, allow_null=True, help_text="The month that it paid."
    )
    refers_to = serializers.UUIDField(source="refers_to_id", read_only=True, allow_null=True)
    reason = serializers.CharField(source="request.reason", default="", read_only=True)
    reference = serializers.CharField(source="request.reference", default="", read_only=True)
    transaction_id = serializers.UUIDField(read_only=True, help_text="Of the ledger.")
    created_at = serializers.DateTimeField(read_only=True)


class NewCreditSerializer(serializers.Serializer[Any]):
    """A change of a tenant's credit."""

    kind = serializers.ChoiceField(choices=CreditRequest.Kind.choices)
    amount_pico = serializers.IntegerField(
        required=False,
        min_value=-credits.LARGEST_PICO,
        max_value=credits.LARGEST_PICO,
        help_text="Above 0; a correction's may be negative; a reversal has none. Top-ups, refunds: whole cents or yen.",
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True, help_text="Of a promotion.")
    reason = serializers.CharField(
        max_length=LONGEST_REASON,
        allow_blank=True,
        default="",
        help_text="Needed for a refund, a correction and a reversal.",
    )
    reference = serializers.CharField(
        max_length=LONGEST_REFERENCE, allow_blank=True, default="", help_text="Such as the number of a payment."
    )
    refers_to = IdField(required=False, allow_null=True, help_text="The entry that it takes back or is about.")
    invoice = serializers.CharField(
        max_length=64,
        allow_blank=True,
        default="",
        help_text="Of a return: number or id of the invoice, whose tax goes back by its share.",
    )


class CreditView(ApiView):
    """One tenant's credit."""

    @extend_schema(operation_id="get_credit", responses={200: CreditSerializer, **error_responses(403, 404)})
    def get(self, request: Request, tenant: str) -> Response:
        """Return what a tenant has paid in advance or was given, and not used."""
        found = _readable(request, tenant)
        with as_tenant(TenantId(found.id)):
            has = balance.of(found.id)
            available = [spending.available_pico(each) for each in spending.prepaid_balances([found.id])]
        names = ("total_pico", "prepaid_pico", "promotion_pico", "promotions")
        shown: Any = {"tenant": found.slug, "currency": found.currency} | {name: getattr(has, name) for name in names}
        shown["mode"] = account.PREPAID if available else account.POSTPAID
        shown["available_pico"] = next(iter(available), None)
        return Response(CreditSerializer(shown).data)


class CreditEntriesView(ApiView):
    """The history of a tenant's credit."""

    @extend_schema(
        operation_id="list_credit_entries",
        parameters=[*PAGE_PARAMETERS, CSV_PARAMETER],
        responses={
            (200, "application/json"): page_schema(CreditEntrySerializer, "CreditEntryList"),
            (200, "text/csv"): str,
            **error_responses(400, 403, 404),
        },
    )
    def get(self, request: Request, tenant: str) -> HttpResponseBase:
        """List the entries of a tenant's credit, newest first; CSV has all."""
        found, page = _readable(request, tenant), pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            if wants_csv(request):
                rows = list(credit_csv.csv_rows(credits.history(found)))
                return csv_export.attachment(request._request, f"credit-{found.slug}", credit_csv.CSV_HEADER, rows)
            entries = pagination.read_page(credits.history(found), page)
        return Response(pagination.page_document(entries, CreditEntrySerializer, page.limit))


class CreditChangesView(ApiView):
    """Changes of one tenant's credit."""

    without_key = "its own key names the change for good"
    permission_classes = (OperatorChanges,)

    @extend_schema(
        operation_id="change_credit",
        parameters=[KEY],
        request=NewCreditSerializer,
        responses={
            200: CreditRequestSerializer,
            201: CreditRequestSerializer,
            **error_responses(400, 403, 404, 409),
        },
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Change a tenant's credit: 201, or 200 if the key was used for the same change before. Operators only.

        With the state `pending` nothing is posted until a second person approves it.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        body = NewCreditSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        key = request.headers.get("Idempotency-Key", "")
        if not key:
            raise BadQuery("Idempotency-Key", "", "a header with your name for this change, such as a payment's number")
        of = body.validated_data.pop("invoice")
        wanted = NewCredit(**body.validated_data, invoice=registry.find(of, found.id).id if of else None)
        asked, is_new = credits.submit(principal.actor, found, key, wanted)
        code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return Response(CreditRequestSerializer(asked).data, status=code)


class CreditRequestsView(ApiView):
    """What waits for a second person."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_credit_requests",
        parameters=[*PAGE_PARAMETERS, OpenApiParameter("state", str, enum=CreditRequest.State.values)],
        responses={200: page_schema(CreditRequestSerializer, "CreditRequestList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List the changes that were asked for, of all tenants, newest first. Operators only."""
        page, state = pagination.page_request(request), request.query_params.get("state")
        if state is not None and state not in CreditRequest.State.values:
            raise BadQuery("state", state, f"one of {', '.join(CreditRequest.State.values)}")
        every = CreditRequest.objects.select_related("credit_note", "entry").defer("credit_note__document")
        rows = every if state is None else every.filter(state=state)
        found = pagination.read_page(rows, page)
        return Response(pagination.page_document(found, CreditRequestSerializer, page.limit))


class ApproveCreditView(ApiView):
    """Approving a change."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="approve_credit",
        request=None,
        responses={200: CreditRequestSerializer, **error_responses(403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, credit_request: UUID) -> Response:
        """Post a change that another operator asked for. Operators only."""
        return _decided(request, tenant, credit_request, crediting.approve)


class RejectCreditView(ApiView):
    """Rejecting a change."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="reject_credit",
        request=None,
        responses={200: CreditRequestSerializer, **error_responses(403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, credit_request: UUID) -> Response:
        """Drop a change that waits for a second person. Operators only."""
        return _decided(request, tenant, credit_request, credits.reject)


def _decided(request: Request, tenant: str, identity: UUID, decide: Callable[..., CreditRequest]) -> Response:
    principal = principal_of(request)
    return Response(CreditRequestSerializer(decide(principal.actor, tenant_for(principal, tenant), identity)).data)


def _readable(request: Request, tenant: str) -> Tenant:
    """Return the tenant. Raises NotFound, and NotPermitted for a caller that may not see its money."""
    principal = principal_of(request)
    found = tenant_for(principal, tenant)
    if not _may_read(principal, found):
        raise NotPermitted(
            "Only operators, owners and billing members of the tenant, and its keys with the scope 'management:tenant' "
            "may read this."
        )
    return found


def _may_read(principal: Principal, tenant: Tenant) -> bool:
    is_tenant_wide_key = principal.kind == "key" and principal.project is None
    return principal.handles_bills_of(tenant.id) or is_tenant_wide_key
