"""Invoices, credit notes, their documents and payments, and the legal entity that issues them.

Triggers refuse every change of what an invoice says: only its state changes, as ``billing.invoices.states`` allows.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from tenants.ids import new_id


class Issuer(models.Model):
    """The provider's legal entity, as its next invoice has it. Invoices that were made keep what it was."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    #: The issuer of invoices that name none.
    is_default = models.BooleanField(default=False)
    legal_name = models.CharField(max_length=200)
    address_lines = ArrayField(models.CharField(max_length=200), default=list)
    postcode = models.CharField(max_length=20, blank=True, default="")
    city = models.CharField(max_length=100)
    #: ISO 3166-1, two letters.
    country = models.CharField(max_length=2)
    tax_id = models.CharField(max_length=50, blank=True, default="")
    registration = models.CharField(max_length=200, blank=True, default="")
    email = models.EmailField(blank=True, default="")
    iban = models.CharField(max_length=34, blank=True, default="")
    bic = models.CharField(max_length=11, blank=True, default="")
    bank_name = models.CharField(max_length=100, blank=True, default="")
    #: Of the dates on its invoices.
    timezone = models.CharField(max_length=63, default="UTC")
    invoice_prefix = models.CharField(max_length=20, default="INV-")
    next_invoice = models.PositiveIntegerField(default=1)
    credit_note_prefix = models.CharField(max_length=20, default="CN-")
    next_credit_note = models.PositiveIntegerField(default=1)
    #: In hundredths of a percent; an account's own rate and note come before these.
    tax_rate_bp = models.PositiveIntegerField(default=0)
    tax_note = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("is_default",), condition=Q(is_default=True), name="one_default_issuer"),
            models.CheckConstraint(name="issuer_tax_rate_within_bounds", condition=Q(tax_rate_bp__lte=10_000)),
        )

    def __str__(self) -> str:
        return self.name


class Invoice(models.Model):
    """What a tenant owes for a month, as a legal document. At most one of a tenant's month is not void.

    One that another system issued (``channel``) has that system's number and no number of ours.
    """

    class State(models.TextChoices):
        FINAL = "final"
        SENT = "sent"
        PAID = "paid"
        VOID = "void"

    class Channel(models.TextChoices):
        HEARTH = "hearth"
        STRIPE = "stripe"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    channel = models.CharField(max_length=16, choices=Channel.choices, default=Channel.HEARTH)
    issuer = models.ForeignKey(Issuer, on_delete=models.PROTECT, null=True, related_name="invoices")
    #: Its place in the issuer's gapless order, and the number that it says.
    sequence = models.PositiveIntegerField(null=True)
    number = models.CharField(max_length=64)
    #: The other system's own id.
    external_id = models.CharField(max_length=200, blank=True, default="")
    closing = models.ForeignKey("billing.BillingMonth", on_delete=models.PROTECT, related_name="invoices")
    year = models.PositiveSmallIntegerField()
    month = models.PositiveSmallIntegerField()
    currency = models.CharField(max_length=3)
    #: The exact sum of its lines, and what rounding each to cents added.
    exact_pico = models.DecimalField(max_digits=38, decimal_places=0)
    rounding_pico = models.DecimalField(max_digits=38, decimal_places=0)
    net_cents = models.BigIntegerField()
    tax_cents = models.BigIntegerField()
    total_cents = models.BigIntegerField()
    #: What credits, and payments of the invoice that it replaces, take from the total.
    applied_cents = models.BigIntegerField(default=0)
    issued_on = models.DateField()
    due_on = models.DateField()
    replaces = models.OneToOneField("self", on_delete=models.PROTECT, null=True, related_name="replaced_by")
    #: ``billing.invoices.content.Content``: all that its documents say.
    document = models.JSONField()
    finalized_at = models.DateTimeField(db_default=Now(), editable=False)
    finalized_by = models.CharField(max_length=200)
    state = models.CharField(max_length=16, choices=State.choices, default=State.FINAL)
    sent_at = models.DateTimeField(null=True)
    paid_at = models.DateTimeField(null=True)
    overdue_at = models.DateTimeField(null=True)
    voided_at = models.DateTimeField(null=True)
    voided_by = models.CharField(max_length=200, blank=True, default="")
    void_reason = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant_id", "year", "month"), condition=~Q(state="void"), name="one_invoice_per_month"
            ),
            models.UniqueConstraint(fields=("issuer", "sequence"), name="invoice_sequence_once"),
            models.UniqueConstraint(fields=("issuer", "number"), name="invoice_number_once"),
            models.UniqueConstraint(
                fields=("channel", "external_id"), condition=~Q(external_id=""), name="external_invoice_once"
            ),
            models.CheckConstraint(
                name="invoice_numbered_by_its_channel",
                condition=Q(channel="hearth", issuer__isnull=False, sequence__isnull=False, external_id="")
                | (~Q(channel="hearth") & Q(issuer=None, sequence=None) & ~Q(external_id="")),
            ),
            models.CheckConstraint(
                name="invoice_total_is_net_and_tax", condition=Q(total_cents=F("net_cents") + F("tax_cents"))
            ),
            models.CheckConstraint(
                name="invoice_void_with_reason",
                condition=(~Q(state="void") & Q(voided_at=None))
                | (Q(state="void", voided_at__isnull=False) & ~Q(void_reason="") & ~Q(voided_by="")),
            ),
        )
        indexes = (models.Index(fields=("tenant_id", "-id"), name="invoices_by_tenant"),)

    def __str__(self) -> str:
        return self.number

    @property
    def period(self) -> str:
        """The month as YYYY-MM."""
        return f"{self.year}-{self.month:02}"

    @property
    def credit_note(self) -> CreditNote | None:
        """The credit note that took it back when it was voided."""
        return next((each for each in self.credit_notes.all() if not each.is_partial), None)


class InvoiceLine(models.Model):
    """One line of an invoice: a line of usage, or what one of the plan's terms adds. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="lines")
    tenant_id = models.UUIDField()
    position = models.PositiveIntegerField()
    description = models.CharField(max_length=600)
    quantity = models.PositiveBigIntegerField(null=True)
    unit = models.CharField(max_length=16, blank=True, default="")
    unit_price_pico = models.PositiveBigIntegerField(null=True)
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)
    amount_cents = models.BigIntegerField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("invoice", "position"), name="invoice_line_once"),)

    def __str__(self) -> str:
        return f"{self.invoice_id} {self.position}"


class CreditNote(models.Model):
    """The document that takes a void invoice back, or a part of one, with a number of its own. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="credit_notes")
    issuer = models.ForeignKey(Issuer, on_delete=models.PROTECT, related_name="credit_notes")
    sequence = models.PositiveIntegerField()
    number = models.CharField(max_length=64)
    issued_on = models.DateField()
    document = models.JSONField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    #: Of a part: what asked for it, its amounts, and how much it took from what was to be paid. The rest is credit.
    is_partial = models.BooleanField(default=False, db_default=False)
    request = models.OneToOneField(
        "billing.CreditRequest", on_delete=models.PROTECT, null=True, related_name="credit_note"
    )
    net_cents = models.BigIntegerField(default=0, db_default=0)
    tax_cents = models.BigIntegerField(default=0, db_default=0)
    settled_cents = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("issuer", "sequence"), name="credit_note_sequence_once"),
            models.UniqueConstraint(fields=("issuer", "number"), name="credit_note_number_once"),
            models.UniqueConstraint(
                fields=("invoice",), condition=Q(is_partial=False), name="credit_note_of_a_void_invoice_once"
            ),
            models.CheckConstraint(
                name="credit_note_of_a_part_has_amounts",
                condition=Q(is_partial=False)
                | Q(request__isnull=False, net_cents__gt=0, tax_cents__gte=0, settled_cents__gte=0)
                & Q(settled_cents__lte=F("net_cents") + F("tax_cents")),
            ),
        )

    def __str__(self) -> str:
        return self.number

    @property
    def total_cents(self) -> int:
        """Of a part: its amount with tax."""
        return self.net_cents + self.tax_cents


class InvoiceDocument(models.Model):
    """A document of an invoice or of a credit note, as it was rendered once. Never changed."""

    class Kind(models.TextChoices):
        PDF = "pdf"
        HTML = "html"
        XML = "xml"
        CSV = "csv"
        JSON = "json"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, null=True, related_name="documents")
    credit_note = models.ForeignKey(CreditNote, on_delete=models.PROTECT, null=True, related_name="documents")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    content = models.BinaryField()
    size_bytes = models.PositiveIntegerField()
    #: Of the content, in hexadecimal digits.
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("invoice", "kind"), name="invoice_document_once"),
            models.UniqueConstraint(fields=("credit_note", "kind"), name="credit_note_document_once"),
            models.CheckConstraint(
                name="document_of_one",
                condition=Q(invoice=None, credit_note__isnull=False) | Q(invoice__isnull=False, credit_note=None),
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} of {self.invoice_id or self.credit_note_id}"


class InvoicePayment(models.Model):
    """Money that arrived for an invoice, with its posting. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="payments")
    transaction = models.OneToOneField(
        "billing.LedgerTransaction", on_delete=models.PROTECT, related_name="invoice_payment"
    )
    amount_cents = models.PositiveBigIntegerField()
    paid_on = models.DateField()
    #: What the bank statement says, once for each invoice: the same payment is not recorded twice.
    reference = models.CharField(max_length=200)
    recorded_by = models.CharField(max_length=200)
    recorded_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("invoice", "reference"), name="payment_reference_once"),
            models.CheckConstraint(name="payment_of_something", condition=Q(amount_cents__gt=0)),
        )

    def __str__(self) -> str:
        return f"{self.amount_cents} for {self.invoice_id}"
