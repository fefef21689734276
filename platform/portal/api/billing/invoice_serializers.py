"""Invoices as JSON."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from billing.invoices import crediting, issuers, registry, states, steps
from billing.models import CreditNote, Invoice, InvoiceDocument, InvoiceLine, InvoicePayment, Issuer

#: What only operators see.
PEOPLE = ("finalized_by", "voided_by")
_FOR_OPERATORS = "For operators; else null."


class CreditNoteSerializer(serializers.Serializer[CreditNote]):
    """The document that takes a void invoice back."""

    id = serializers.UUIDField(read_only=True)
    number = serializers.CharField(read_only=True)
    issued_on = serializers.DateField(read_only=True)


class PartialCreditNoteSerializer(CreditNoteSerializer):
    """The document that takes a part of an invoice back."""

    net_cents = serializers.IntegerField(read_only=True)
    tax_cents = serializers.IntegerField(read_only=True)
    total_cents = serializers.IntegerField(read_only=True)
    settled_cents = serializers.IntegerField(
        read_only=True, help_text="What of it was not paid yet and is not to be paid. The rest is credit."
    )
    reason = serializers.CharField(source="request.reason", read_only=True)


class InvoiceSerializer(serializers.Serializer[Invoice]):
    """An invoice."""

    id = serializers.UUIDField(read_only=True)
    tenant_id = serializers.UUIDField(read_only=True)
    number = serializers.CharField(read_only=True)
    issuer = serializers.ChoiceField(
        source="channel", choices=Invoice.Channel.choices, read_only=True, help_text="Whose legal document it is."
    )
    external_id = serializers.CharField(read_only=True, help_text="The other system's id; empty for one of Hearth's.")
    month = serializers.CharField(source="period", read_only=True, help_text="As YYYY-MM.")
    state = serializers.SerializerMethodField()
    currency = serializers.CharField(read_only=True)
    net_cents = serializers.IntegerField(
        read_only=True, help_text="The sum of its lines, in minor units: 1234 is 12.34 EUR, 1234 JPY."
    )
    tax_cents = serializers.IntegerField(read_only=True)
    total_cents = serializers.IntegerField(read_only=True)
    applied_cents = serializers.IntegerField(
        read_only=True, help_text="What credits, and payments of the invoice that it replaces, take from the total."
    )
    paid_cents = serializers.SerializerMethodField(help_text="What was paid for it.")
    credited_cents = serializers.SerializerMethodField(
        help_text="What credit notes for parts of it took from what was to be paid."
    )
    open_cents = serializers.SerializerMethodField(help_text="What is still to be paid.")
    issued_on = serializers.DateField(read_only=True)
    due_on = serializers.DateField(read_only=True)
    finalized_at = serializers.DateTimeField(read_only=True)
    sent_at = serializers.DateTimeField(read_only=True, allow_null=True)
    paid_at = serializers.DateTimeField(read_only=True, allow_null=True)
    voided_at = serializers.DateTimeField(read_only=True, allow_null=True)
    void_reason = serializers.CharField(read_only=True)
    replaces = serializers.CharField(
        source="replaces.number", read_only=True, default=None, allow_null=True, help_text="Number of the void one."
    )
    credit_note = CreditNoteSerializer(read_only=True, default=None, allow_null=True)
    finalized_by = serializers.CharField(read_only=True, allow_null=True, help_text=_FOR_OPERATORS)
    voided_by = serializers.CharField(read_only=True, allow_null=True, help_text=_FOR_OPERATORS)

    @extend_schema_field(serializers.ChoiceField(choices=states.SHOWN))
    def get_state(self, invoice: Invoice) -> str:
        """Return the state that people read."""
        return states.shown(invoice, timezone.now().date())

    def get_paid_cents(self, invoice: Invoice) -> int:
        """Return what was paid."""
        return registry.paid_cents(invoice)

    def get_credited_cents(self, invoice: Invoice) -> int:
        """Return what was credited before it was paid."""
        return registry.credited_cents(invoice)

    def get_open_cents(self, invoice: Invoice) -> int:
        """Return what is open."""
        return registry.open_cents(invoice)

    def to_representation(self, instance: Invoice) -> dict[str, Any]:
        """Return the document, without people's names unless an operator reads it."""
        found: dict[str, Any] = super().to_representation(instance)
        return found if self.context.get("for_operator") else found | dict.fromkeys(PEOPLE)


class InvoiceLineSerializer(serializers.Serializer[InvoiceLine]):
    """One line. Lines of the plan's terms have neither quantity nor price."""

    description = serializers.CharField(read_only=True)
    quantity = serializers.IntegerField(read_only=True, allow_null=True)
    unit = serializers.CharField(read_only=True, help_text="token, request, or empty.")
    unit_price_pico = serializers.IntegerField(read_only=True, allow_null=True)
    amount_pico = serializers.IntegerField(read_only=True, help_text="Exact.")
    amount_cents = serializers.IntegerField(read_only=True, help_text="Rounded half to even.")


class InvoicePaymentSerializer(serializers.Serializer[InvoicePayment]):
    """Money that arrived for an invoice."""

    id = serializers.UUIDField(read_only=True)
    amount_cents = serializers.IntegerField(read_only=True)
    paid_on = serializers.DateField(read_only=True)
    reference = serializers.CharField(read_only=True)
    recorded_at = serializers.DateTimeField(read_only=True)
    undone_at = serializers.DateTimeField(
        source="undone.undone_at",
        read_only=True,
        default=None,
        allow_null=True,
        help_text="Since when it counts no more.",
    )


class InvoiceDocumentSerializer(serializers.Serializer[InvoiceDocument]):
    """A document as it was rendered."""

    kind = serializers.ChoiceField(choices=InvoiceDocument.Kind.choices, read_only=True)
    size_bytes = serializers.IntegerField(read_only=True)
    sha256 = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)


class InvoiceDetailSerializer(InvoiceSerializer):
    """An invoice with its lines, payments and documents."""

    lines = serializers.SerializerMethodField()
    payments = serializers.SerializerMethodField()
    documents = serializers.SerializerMethodField()
    partial_credit_notes = serializers.SerializerMethodField(help_text="Each took a part of it back.")

    @extend_schema_field(PartialCreditNoteSerializer(many=True))
    def get_partial_credit_notes(self, invoice: Invoice) -> Any:
        """Return its credit notes for parts, the first one first."""
        rows: Any = invoice.credit_notes.filter(is_partial=True).select_related("request").order_by("id")
        return PartialCreditNoteSerializer(rows, many=True).data

    @extend_schema_field(InvoiceLineSerializer(many=True))
    def get_lines(self, invoice: Invoice) -> Any:
        """Return its lines in order."""
        rows: Any = invoice.lines.order_by("position")
        return InvoiceLineSerializer(rows, many=True).data

    @extend_schema_field(InvoicePaymentSerializer(many=True))
    def get_payments(self, invoice: Invoice) -> Any:
        """Return its payments, the first one first."""
        rows: Any = invoice.payments.select_related("undone").order_by("id")
        return InvoicePaymentSerializer(rows, many=True).data

    @extend_schema_field(InvoiceDocumentSerializer(many=True))
    def get_documents(self, invoice: Invoice) -> Any:
        """Return its documents without their content."""
        rows: Any = invoice.documents.order_by("kind").defer("content")
        return InvoiceDocumentSerializer(rows, many=True).data


class ExternalInvoiceSerializer(serializers.Serializer[Any]):
    """An invoice that another system issued. Its net amount must be what the month's lines sum to."""

    external_id = serializers.CharField(max_length=64, help_text="The other system's id.")
    number = serializers.CharField(max_length=64, help_text="The other system's number.")
    total_cents = serializers.IntegerField(min_value=0, max_value=10**15, help_text="With tax, in minor units.")
    tax_cents = serializers.IntegerField(min_value=0, max_value=10**15, default=0, help_text="In minor units.")
    issued_on = serializers.DateField()
    due_on = serializers.DateField()


class FinalizeSerializer(serializers.Serializer[Any]):
    """Whose invoice of which month."""

    tenant = serializers.CharField(max_length=63, help_text="Slug or id.")
    month = serializers.CharField(max_length=7, help_text="As YYYY-MM. It must be closed.")
    issuer = serializers.CharField(
        max_length=63, default=None, allow_null=True, help_text="Name of an issuer; default: the default one."
    )
    external = ExternalInvoiceSerializer(
        default=None, allow_null=True, help_text="Keep the invoice that another system issued instead of making one."
    )


class PaySerializer(serializers.Serializer[Any]):
    """Money that arrived."""

    reference = serializers.CharField(
        max_length=steps.LONGEST_REFERENCE,
        required=False,
        help_text="What the bank statement says. The same one again changes nothing. Default: the header "
        "Idempotency-Key.",
    )
    paid_on = serializers.DateField()
    amount_cents = serializers.IntegerField(
        min_value=1,
        max_value=10**15,
        default=None,
        allow_null=True,
        help_text="In the currency's minor units. Default: all that is open.",
    )


class CreditLineSerializer(serializers.Serializer[Any]):
    """A line of a credit note."""

    text = serializers.CharField(max_length=crediting.LONGEST_TEXT)
    net_cents = serializers.IntegerField(
        min_value=1, max_value=10**15, help_text="Without tax, in the currency's minor units."
    )


class CreditPartSerializer(serializers.Serializer[Any]):
    """What is credited, and why."""

    reason = serializers.CharField(max_length=steps.LONGEST_REASON, help_text="It is on the credit note.")
    lines = serializers.ListField(
        child=CreditLineSerializer(),
        max_length=crediting.MOST_LINES,
        allow_empty=False,
        default=None,
        allow_null=True,
        help_text="null: one line of all that is left.",
    )


class UnpaySerializer(serializers.Serializer[Any]):
    """Which payment, and why."""

    reference = serializers.CharField(max_length=steps.LONGEST_REFERENCE, help_text="That of the payment.")
    reason = serializers.CharField(max_length=steps.LONGEST_REASON, help_text="Why it is taken back.")


class VoidSerializer(serializers.Serializer[Any]):
    """Why."""

    reason = serializers.CharField(max_length=steps.LONGEST_REASON, help_text="It is on the credit note.")


class IssuerSerializer(serializers.Serializer[Issuer]):
    """The provider's legal entity, as its next invoice has it."""

    id = serializers.UUIDField(read_only=True)
    name = serializers.CharField(read_only=True)
    is_default = serializers.BooleanField(required=False, help_text="true makes it the issuer of invoices.")
    legal_name = serializers.CharField(required=False, max_length=200)
    address_lines = serializers.ListField(
        child=serializers.CharField(max_length=200), max_length=issuers.MOST_ADDRESS_LINES, required=False
    )
    postcode = serializers.CharField(required=False, allow_blank=True, max_length=20)
    city = serializers.CharField(required=False, max_length=100)
    country = serializers.CharField(required=False, max_length=2, help_text="ISO 3166-1, two letters.")
    tax_id = serializers.CharField(required=False, allow_blank=True, max_length=50)
    registration = serializers.CharField(required=False, allow_blank=True, max_length=200)
    email = serializers.CharField(required=False, allow_blank=True, max_length=254)
    iban = serializers.CharField(required=False, allow_blank=True, max_length=42)
    bic = serializers.CharField(required=False, allow_blank=True, max_length=11)
    bank_name = serializers.CharField(required=False, allow_blank=True, max_length=100)
    timezone = serializers.CharField(required=False, max_length=63, help_text="Of the dates on its documents.")
    invoice_prefix = serializers.CharField(required=False, max_length=20)
    credit_note_prefix = serializers.CharField(required=False, max_length=20)
    tax_rate_bp = serializers.IntegerField(
        required=False, min_value=0, max_value=issuers.HIGHEST_TAX_BP, help_text="Hundredths of a percent."
    )
    tax_note = serializers.CharField(required=False, allow_blank=True, max_length=500)
    next_invoice = serializers.IntegerField(read_only=True)
    next_credit_note = serializers.IntegerField(read_only=True)
