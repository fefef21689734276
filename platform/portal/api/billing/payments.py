"""``/api/v1/payments``: importing bank statements, and assigning or dismissing their lines. Operators only."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from billing import tasks
from billing.models import BankLine
from billing.models.payments import LONGEST_REASON
from billing.payments import assignment, bank_file, importing, retrying
from billing.payments.importing import Imported, Report
from portal.access.principal import tenant_for
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.text_body import BytesParser, flag

#: The largest amount of one line, in cents.
LARGEST_CENTS = 10**15


class BankLineSerializer(serializers.ModelSerializer[BankLine]):
    """A line of a bank statement."""

    rest_cents = serializers.IntegerField(read_only=True, help_text="What of it is not assigned.")
    invoices = serializers.SerializerMethodField(help_text="Numbers of the invoices that it paid.")

    class Meta:
        model = BankLine
        fields = (
            *("id", "bank_account", "bank_reference", "booked_on", "amount_cents", "currency", "payer", "remittance"),
            *("state", "assigned_cents", "rest_cents", "invoices", "problem", "dismiss_reason", "dismissed_by"),
            *("imported_at", "imported_by"),
        )
        read_only_fields = fields

    def get_invoices(self, line: BankLine) -> list[str]:
        """Return the numbers, the first paid first."""
        rows = line.assignments.filter(payment__undone=None).order_by("id").select_related("payment__invoice")
        return [each.payment.invoice.number for each in rows]


class ImportedLineSerializer(serializers.Serializer[Imported]):
    """What the import did with one line."""

    bank_reference = serializers.CharField(source="entry.bank_reference")
    booked_on = serializers.DateField(source="entry.booked_on")
    amount_cents = serializers.IntegerField(source="entry.amount_cents")
    currency = serializers.CharField(source="entry.currency")
    outcome = serializers.ChoiceField(
        choices=("known", "matched", "partly matched", "open", "waiting"),
        help_text="known: it was imported before. waiting: it names invoices, and the run pays them.",
    )
    invoices = serializers.ListField(child=serializers.CharField(), help_text="Numbers of the invoices that it paid.")
    problem = serializers.CharField(help_text="Why something of it is not assigned; empty: all is.")


class StatementImportSerializer(serializers.Serializer[Report]):
    """What an import did."""

    lines = ImportedLineSerializer(many=True)
    outgoing = serializers.IntegerField(help_text="Lines of money that went out, which were left out.")
    pending = serializers.IntegerField(help_text="Lines that are not booked yet, which were left out.")
    run = serializers.SerializerMethodField(help_text="Id of the run that matches what waits; null: nothing does.")

    def get_run(self, report: Report) -> UUID | None:
        """Return the id."""
        found: UUID | None = self.context.get("run")
        return found


class AssignLineSerializer(serializers.Serializer[Any]):
    """What a line pays."""

    invoice = serializers.CharField(max_length=64, help_text="Number or id of an invoice.")
    amount_cents = serializers.IntegerField(
        min_value=1, max_value=LARGEST_CENTS, required=False, allow_null=True, default=None,
        help_text="In the currency's minor units. Default: what is open, at most what is left of the line.",
    )  # fmt: skip


class DismissLineSerializer(serializers.Serializer[Any]):
    """Why a line is dismissed."""

    reason = serializers.CharField(max_length=LONGEST_REASON)


class UndoAssignmentSerializer(serializers.Serializer[Any]):
    """What a line no longer pays."""

    invoice = serializers.CharField(max_length=64, help_text="Number or id of the invoice.")
    reason = serializers.CharField(max_length=LONGEST_REASON)


class KeepLineSerializer(serializers.Serializer[Any]):
    """Whose credit the rest of a line becomes."""

    tenant = serializers.CharField(
        max_length=63, required=False, allow_null=True, default=None,
        help_text="Slug or id. Default: the tenant whose invoice the line paid.",
    )  # fmt: skip


class MatchedSerializer(serializers.Serializer[Any]):
    """What a new try did."""

    lines = serializers.IntegerField(help_text="How many lines paid something.")


class PaymentsView(ApiView):
    """Lines of bank statements."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_payments",
        parameters=[OpenApiParameter("state", str, enum=BankLine.State.values), *PAGE_PARAMETERS],
        responses={200: page_schema(BankLineSerializer, "BankLineList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List lines of bank statements, the newest first. Operators only."""
        page, state = pagination.page_request(request), request.query_params.get("state")
        if state is not None and state not in BankLine.State.values:
            raise ValidationError({"state": f"Use one of {', '.join(BankLine.State.values)}."})
        lines = BankLine.objects.all() if state is None else BankLine.objects.filter(state=state)
        return Response(pagination.page_document(pagination.read_page(lines, page), BankLineSerializer, page.limit))


class ImportView(ApiView):
    """A bank statement."""

    without_key = "the bank's reference of each line does, and each line is a change of its own"
    permission_classes = (OperatorOnly,)
    parser_classes = (BytesParser,)

    @extend_schema(
        operation_id="import_payments",
        parameters=[OpenApiParameter("dry_run", bool, description="Say what would be done, and change nothing.")],
        request={"application/xml": OpenApiTypes.STR, "text/csv": OpenApiTypes.STR},
        responses={200: StatementImportSerializer, 202: StatementImportSerializer, **error_responses(400, 403)},
    )
    def post(self, request: Request) -> Response:
        """Import a bank statement, camt.053 or CSV. The same lines again change nothing. Operators only.

        202 if more than 20 lines name invoices: the others wait for a run of billing.
        """
        dry_run, actor = flag(request, "dry_run"), principal_of(request).actor
        data = request.data if isinstance(request.data, bytes) else b""
        most = importing.MOST_PAID_AT_ONCE
        report = importing.run(actor, bank_file.read(data), dry_run=dry_run, most_paid=most)
        run = tasks.match_later(actor, report.waiting) if report.waiting and not dry_run else None
        code = status.HTTP_200_OK if run is None else status.HTTP_202_ACCEPTED
        return Response(StatementImportSerializer(report, context={"run": run}).data, code)


class AssignView(ApiView):
    """What a line pays."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="assign_payment",
        request=AssignLineSerializer,
        responses={200: BankLineSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, line: UUID) -> Response:
        """Pay an invoice from a line, or from what is left of it. Operators only."""
        body = AssignLineSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        number, amount = body.validated_data["invoice"], body.validated_data["amount_cents"]
        found = assignment.assign(principal_of(request).actor, line, number, amount_cents=amount)
        return Response(BankLineSerializer(found).data)


class UndoView(ApiView):
    """What a line no longer pays."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="undo_payment_assignment",
        request=UndoAssignmentSerializer,
        responses={200: BankLineSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, line: UUID) -> Response:
        """Take back what a line paid of an invoice: it is open again, and left of the line. Operators only."""
        body = UndoAssignmentSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        given = body.validated_data
        found = assignment.undo(principal_of(request).actor, line, given["invoice"], given["reason"])
        return Response(BankLineSerializer(found).data)


class KeepView(ApiView):
    """A rest that becomes credit."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="keep_payment_as_credit",
        request=KeepLineSerializer,
        responses={200: BankLineSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, line: UUID) -> Response:
        """Make what is left of a line prepaid credit. Operators only."""
        body = KeepLineSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        principal, slug = principal_of(request), body.validated_data["tenant"]
        assignment.keep_as_credit(principal.actor, line, None if slug is None else tenant_for(principal, slug))
        return Response(BankLineSerializer(assignment.find(line)).data)


class MatchView(ApiView):
    """A new try."""

    without_key = "it takes what is open, each line once, and each is a change of its own"
    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="match_payments", request=None, responses={200: MatchedSerializer, **error_responses(403)}
    )
    def post(self, request: Request) -> Response:
        """Try the lines of the queue again, as beat does every ten minutes. Operators only."""
        return Response({"lines": retrying.run(principal_of(request).actor)})


class DismissView(ApiView):
    """A line that pays nothing."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="dismiss_payment",
        request=DismissLineSerializer,
        responses={200: BankLineSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, line: UUID) -> Response:
        """Take what is left of a line out of the queue. The same again changes nothing. Operators only."""
        body = DismissLineSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        found = assignment.dismiss(principal_of(request).actor, line, body.validated_data["reason"])
        return Response(BankLineSerializer(found).data)
