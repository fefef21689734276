"""``/api/v1/invoices``: invoices of closed months, their documents, and what becomes of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing.invoices import crediting, drafting, finalizing, issuers, mirroring, registry, states, steps
from billing.invoices.content import as_document
from billing.invoices.mirroring import External
from billing.models import Invoice, InvoiceDocument
from billing.reports.statements import Month
from portal.access import tenant_reads
from portal.access.principal import Principal, tenant_for
from portal.access.rights import bills
from portal.api import pagination
from portal.api.authentication import OperatorChanges, OperatorOnly, principal_of
from portal.api.billing.credit import KEY, CreditRequestSerializer
from portal.api.billing.invoice_serializers import (
    CreditPartSerializer,
    FinalizeSerializer,
    InvoiceDetailSerializer,
    InvoiceSerializer,
    PaySerializer,
    UnpaySerializer,
    VoidSerializer,
)
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import (
    CSV_PARAMETER,
    PAGE_PARAMETERS,
    error_responses,
    page_schema,
    reject_unknown_fields,
    wants_csv,
)
from portal.errors import BadQuery
from portal.formats import csv_export, invoice_download, query_params
from portal.reporting import periods
from portal.reporting.billing import invoices_csv
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant

#: A CSV has at most as many invoices.
MOST_ROWS = 100_000
_KINDS = tuple(InvoiceDocument.Kind.values)


class InvoicesView(ApiView):
    """All invoices."""

    permission_classes = (OperatorChanges,)

    @extend_schema(
        operation_id="list_invoices",
        parameters=[
            OpenApiParameter("tenant", str, description="Slug or id of a tenant."),
            OpenApiParameter("month", str, description="As YYYY-MM."),
            OpenApiParameter("state", str, enum=list(states.SHOWN)),
            *PAGE_PARAMETERS,
            CSV_PARAMETER,
        ],
        responses={
            (200, "application/json"): page_schema(InvoiceSerializer, "InvoiceList"),
            (200, "text/csv"): str,
            **error_responses(400, 403, 404),
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """List invoices, newest first. For operators, and owners and billing members of a tenant.

        CSV has the newest 100,000; the header `x-rows-cut` says that there are more.
        """
        principal = bills.for_bills(principal_of(request))
        chosen, page = _filters(request, principal), pagination.page_request(request)
        state = query_params.text(request.query_params, "state")
        if state and state not in states.SHOWN:
            raise ValidationError({"state": f"Use one of {', '.join(states.SHOWN)}."})
        most = (MOST_ROWS if wants_csv(request) else page.limit) + 1

        def read() -> list[Invoice]:
            rows = registry.with_paid(Invoice.objects.filter(**chosen)).order_by("-id")
            if state:
                rows = registry.in_state(rows, state, timezone.now().date())
            if page.after is not None:
                rows = rows.filter(id__lt=page.after)
            return list(rows[:most])

        found = tenant_reads.newest(principal, read, most)
        if wants_csv(request):
            kept = found[:MOST_ROWS]
            answer = csv_export.attachment(
                request._request, "invoices", invoices_csv.HEADER, invoices_csv.rows(kept, _slugs(kept))
            )
            if len(found) > MOST_ROWS:
                answer.headers["x-rows-cut"] = str(MOST_ROWS)
            return answer
        context = {"for_operator": principal.is_operator}
        return Response(pagination.page_document(found, InvoiceSerializer, page.limit, context))

    @extend_schema(
        operation_id="finalize_invoice",
        request=FinalizeSerializer,
        responses={200: InvoiceDetailSerializer, 201: InvoiceDetailSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request) -> Response:
        """Make the invoice of a closed month, or keep another system's; 200 if it exists, which changes nothing.

        Operators only.
        """
        principal, body = principal_of(request), _valid(FinalizeSerializer(data=request.data))
        month = _month(tenant_for(principal, body["tenant"]), body["month"])
        if body["external"] is not None:
            invoice, new = mirroring.record(principal.actor, month, External(**body["external"]))
        else:
            invoice, new = finalizing.finalize(principal.actor, month, issuer=body["issuer"])
        return _detail(invoice, principal, status.HTTP_201_CREATED if new else status.HTTP_200_OK)


class InvoiceView(ApiView):
    """One invoice."""

    @extend_schema(operation_id="get_invoice", responses={200: InvoiceDetailSerializer, **error_responses(403, 404)})
    def get(self, request: Request, invoice: UUID) -> Response:
        """Return an invoice with its lines, payments and documents."""
        principal = principal_of(request)
        found = bills.invoice_for(principal, invoice)
        with _as_reader(principal, found):
            return _detail(found, principal)


class InvoiceDocumentView(ApiView):
    """A document of an invoice."""

    @extend_schema(
        operation_id="get_invoice_document",
        parameters=[
            OpenApiParameter("kind", str, OpenApiParameter.PATH, enum=_KINDS),
            OpenApiParameter(
                "of",
                str,
                description="invoice, which is the default; credit_note, which took all of it back; or the number of "
                "one of its credit notes.",
            ),
        ],
        responses={
            (200, "application/pdf"): OpenApiTypes.BINARY,
            (200, "text/html"): str,
            (200, "application/xml"): str,
            (200, "text/csv"): str,
            (200, "application/json"): OpenApiTypes.OBJECT,
            **error_responses(400, 403, 404),
        },
    )
    def get(self, request: Request, invoice: UUID, kind: str) -> HttpResponse:
        """Return a document as it was rendered when the invoice became final, or its credit note was made."""
        principal = principal_of(request)
        of = query_params.text(request.query_params, "of") or "invoice"
        found = bills.invoice_for(principal, invoice)
        with _as_reader(principal, found):
            document = registry.document(found, kind, note="" if of == "invoice" else of)
            return invoice_download.response(document)


class SendInvoiceView(ApiView):
    """Noting that an invoice was sent."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="send_invoice", request=None, responses={200: InvoiceSerializer, **error_responses(403, 404, 409)}
    )
    def post(self, request: Request, invoice: UUID) -> Response:
        """Send an invoice by e-mail, with its PDF; again sends it again. Operators only."""
        principal = principal_of(request)
        return _short(steps.send(principal.actor, bills.invoice_for(principal, invoice)))


class PayInvoiceView(ApiView):
    """Recording a payment."""

    without_key = "the payment's reference names it for good"
    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="pay_invoice",
        parameters=[OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER, description="The reference.")],
        request=PaySerializer,
        responses={200: InvoiceDetailSerializer, 201: InvoiceDetailSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, invoice: UUID) -> Response:
        """Record money that arrived; 200 for a reference that was recorded, which changes nothing. Operators only."""
        principal, body = principal_of(request), _valid(PaySerializer(data=request.data))
        reference = body.get("reference") or request.headers.get("Idempotency-Key", "")
        if not reference:
            raise ValidationError({"reference": "Give what the bank statement says."})
        found = bills.invoice_for(principal, invoice)
        _, new = steps.pay(
            principal.actor, found, reference=reference, paid_on=body["paid_on"], amount_cents=body["amount_cents"]
        )
        found.refresh_from_db()
        return _detail(found, principal, status.HTTP_201_CREATED if new else status.HTTP_200_OK)


class UnpayInvoiceView(ApiView):
    """Taking a payment back."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="unpay_invoice",
        request=UnpaySerializer,
        responses={200: InvoiceDetailSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, invoice: UUID) -> Response:
        """Take back a payment that was recorded: that much is open again. Operators only."""
        principal, body = principal_of(request), _valid(UnpaySerializer(data=request.data))
        found = bills.invoice_for(principal, invoice)
        steps.undo_recorded(principal.actor, found, body["reference"], body["reason"])
        return _detail(registry.find(str(found.id)), principal, status.HTTP_200_OK)


class VoidInvoiceView(ApiView):
    """Voiding an invoice."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="void_invoice",
        request=VoidSerializer,
        responses={200: InvoiceSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, invoice: UUID) -> Response:
        """Void an invoice, with a credit note that takes it back. Operators only."""
        principal, body = principal_of(request), _valid(VoidSerializer(data=request.data))
        found = bills.invoice_for(principal, invoice)
        steps.void(principal.actor, found, body["reason"])
        return _short(registry.find(str(found.id)))


class CreditNotesView(ApiView):
    """Credit notes for parts of an invoice."""

    permission_classes = (OperatorOnly,)
    without_key = "its own key names the credit note for good"

    @extend_schema(
        operation_id="credit_invoice",
        parameters=[KEY],
        request=CreditPartSerializer,
        responses={
            200: CreditRequestSerializer,
            201: CreditRequestSerializer,
            **error_responses(400, 403, 404, 409),
        },
    )
    def post(self, request: Request, invoice: UUID) -> Response:
        """Credit a part of an invoice: 201, or 200 if the key was used for the same before. Operators only.

        With the state `pending` nothing is posted until a second person approves it, as with other changes of credit.
        """
        principal, body = principal_of(request), _valid(CreditPartSerializer(data=request.data))
        key = request.headers.get("Idempotency-Key", "")
        if not key:
            raise BadQuery("Idempotency-Key", "", "a header with your name for this credit note")
        lines = None if body["lines"] is None else [crediting.Line(**each) for each in body["lines"]]
        found = bills.invoice_for(principal, invoice)
        asked, is_new = crediting.submit(principal.actor, found, key, body["reason"], lines)
        code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return Response(CreditRequestSerializer(asked).data, status=code)


class DraftInvoiceView(ApiView):
    """What an invoice would say."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="draft_invoice",
        parameters=[OpenApiParameter("issuer", str, description="Name of an issuer; default: the default one.")],
        responses={200: OpenApiTypes.OBJECT, **error_responses(400, 403, 404, 409)},
    )
    def get(self, request: Request, tenant: str, month: str) -> Response:
        """Return what the invoice of a month, given as YYYY-MM, would say now, as its JSON document. Operators only."""
        found = tenant_for(principal_of(request), tenant)
        issuer = issuers.find(query_params.text(request.query_params, "issuer") or None)
        return Response(as_document(drafting.draft(_month(found, month), issuer, timezone.now())))


def _filters(request: Request, principal: Principal) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if named := query_params.text(request.query_params, "tenant"):
        chosen["tenant_id"] = tenant_for(principal, named).id
    if month := query_params.text(request.query_params, "month"):
        first = periods.parse_month(month, timezone.now())
        chosen |= {"year": first.year, "month": first.month}
    return chosen


def _month(tenant: Tenant, text: str) -> Month:
    first = periods.parse_month(text, timezone.now())
    return Month(tenant=tenant, year=first.year, month=first.month)


def _slugs(found: list[Invoice]) -> dict[UUID, str]:
    return dict(Tenant.objects.filter(id__in={each.tenant_id for each in found}).values_list("id", "slug"))


def _as_reader(principal: Principal, invoice: Invoice) -> AbstractContextManager[None]:
    return nullcontext() if principal.is_operator else as_tenant(TenantId(invoice.tenant_id))


def _valid(body: serializers.Serializer[Any]) -> dict[str, Any]:
    body.is_valid(raise_exception=True)
    reject_unknown_fields(body)
    found: dict[str, Any] = body.validated_data
    return found


def _detail(invoice: Invoice, principal: Principal, code: int = status.HTTP_200_OK) -> Response:
    return Response(InvoiceDetailSerializer(invoice, context={"for_operator": principal.is_operator}).data, status=code)


def _short(invoice: Invoice) -> Response:
    return Response(InvoiceSerializer(invoice, context={"for_operator": True}).data)
