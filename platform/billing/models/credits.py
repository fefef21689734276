"""Credit: what a tenant has paid in advance or was given, as entries that never change."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from tenants.ids import new_id

LONGEST_KEY = 200
LONGEST_REASON = 500
LONGEST_REFERENCE = 200


class CreditRequest(models.Model):
    """One change of a tenant's credit that somebody asked for. Posted at once, or once a second person approves it."""

    class Kind(models.TextChoices):
        TOP_UP = "top_up"
        PROMOTION = "promotion"
        REFUND = "refund"
        CORRECTION = "correction"
        #: Money of a paid invoice that went back, as by a refund or a dispute: the amount, while credit stays as it is.
        RETURN = "return"
        REVERSAL = "reversal"
        #: A credit note for a part of an invoice, with tax: what of it is not to be paid any more is no credit.
        CREDIT_NOTE = "credit_note"

    class State(models.TextChoices):
        PENDING = "pending"
        POSTED = "posted"
        REJECTED = "rejected"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    #: Given by the caller: the same again changes nothing.
    key = models.CharField(max_length=LONGEST_KEY)
    kind = models.CharField(max_length=16, choices=Kind.choices)
    #: What it adds to the tenant's credit; negative: takes from it.
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)
    currency = models.CharField(max_length=3)
    #: Of a promotion.
    expires_at = models.DateTimeField(null=True)
    reason = models.CharField(max_length=LONGEST_REASON, blank=True, default="")
    #: What it is about outside Hearth, such as the number of a payment.
    reference = models.CharField(max_length=LONGEST_REFERENCE, blank=True, default="")
    refers_to = models.ForeignKey("billing.CreditEntry", null=True, on_delete=models.PROTECT, related_name="+")
    #: Of a return and a credit note: the invoice that was paid or is credited, and the tax within the amount.
    invoice = models.ForeignKey("billing.Invoice", null=True, on_delete=models.PROTECT, related_name="returns")
    tax_pico = models.DecimalField(max_digits=38, decimal_places=0, default=0, db_default=0)
    #: Of a credit note: what its lines say, and their amounts without tax, in minor units.
    lines = models.JSONField(null=True)
    needs_approval = models.BooleanField()
    state = models.CharField(max_length=8, choices=State.choices)
    requested_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    decided_by = models.CharField(max_length=200, blank=True, default="")
    decided_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant_id", "key"), name="credit_request_once"),
            models.CheckConstraint(
                name="credit_approved_by_a_second_person",
                condition=~Q(state="posted")
                | Q(needs_approval=False)
                | (~Q(decided_by="") & ~Q(decided_by=F("requested_by")) & Q(decided_at__isnull=False)),
            ),
        )
        indexes = (models.Index(fields=("state", "-id"), name="credit_requests_by_state"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.key} of {self.tenant_id}"


class CreditEntry(models.Model):
    """One change of a tenant's credit, with its posting in the ledger. Never changed; another entry takes it back.

    The sum of the prepaid entries, and that of the entries of each promotion, is never below zero: a trigger.
    """

    class Kind(models.TextChoices):
        TOP_UP = "top_up"
        PROMOTION = "promotion"
        REFUND = "refund"
        CORRECTION = "correction"
        REVERSAL = "reversal"
        #: What was left of a promotion when it expired.
        EXPIRED = "expired"
        #: What paid for a closed month, and what reopening it gave back.
        APPLIED = "applied"
        UNAPPLIED = "unapplied"
        #: What was paid for a void invoice and the month does not need, or for a part that a credit note took back.
        OVERPAID = "overpaid"
        #: What was left of a line of a bank statement.
        TRANSFER = "transfer"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    kind = models.CharField(max_length=16, choices=Kind.choices)
    #: Negative: the tenant has less credit.
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)
    currency = models.CharField(max_length=3)
    #: The promotion from which it takes or to which it gives; its own id for the promotion itself; None: prepaid.
    promotion = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="+")
    expires_at = models.DateTimeField(null=True)
    #: None: no person asked for it.
    request = models.OneToOneField(CreditRequest, null=True, on_delete=models.PROTECT, related_name="entry")
    refers_to = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="referring")
    closing = models.ForeignKey(
        "billing.BillingMonth", null=True, on_delete=models.PROTECT, related_name="credit_entries"
    )
    transaction = models.OneToOneField(
        "billing.LedgerTransaction", on_delete=models.PROTECT, related_name="credit_entry"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "credit entries"
        constraints = (
            models.UniqueConstraint(
                fields=("refers_to",),
                condition=Q(kind="reversal") | Q(kind="unapplied"),
                name="credit_entry_reversed_once",
            ),
        )
        indexes = (models.Index(fields=("tenant_id", "promotion"), name="credit_entries_by_promotion"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.amount_pico} of {self.tenant_id}"
