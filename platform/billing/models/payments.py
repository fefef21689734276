"""Lines of imported bank statements, what they became, and payments that were undone or failed.

No tenant reads lines: until an operator assigns it, nobody knows whose a line is.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.models.credits import CreditEntry
from billing.models.invoices import Invoice, InvoicePayment
from tenants.ids import new_id

LONGEST_ACCOUNT = 64
LONGEST_REFERENCE = 200
LONGEST_NAME = 200
LONGEST_REMITTANCE = 1000
LONGEST_REASON = 500


class BankLine(models.Model):
    """Money on one line of a bank statement, stored once for each account and bank reference.

    What the bank says never changes; a trigger refuses it. ``amount_cents`` below zero is a payment that went back.
    """

    class State(models.TextChoices):
        #: Something of it is not assigned.
        OPEN = "open"
        MATCHED = "matched"
        DISMISSED = "dismissed"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    bank_account = models.CharField(max_length=LONGEST_ACCOUNT)
    #: The bank's own reference, unique within the account.
    bank_reference = models.CharField(max_length=LONGEST_REFERENCE)
    booked_on = models.DateField()
    amount_cents = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    payer = models.CharField(max_length=LONGEST_NAME, blank=True, default="")
    #: What the payer wrote.
    remittance = models.CharField(max_length=LONGEST_REMITTANCE, blank=True, default="")
    imported_by = models.CharField(max_length=200)
    imported_at = models.DateTimeField(db_default=Now(), editable=False)
    state = models.CharField(max_length=16, choices=State.choices, default=State.OPEN)
    assigned_cents = models.BigIntegerField(default=0)
    #: Why it is not matched, in one sentence.
    problem = models.CharField(max_length=LONGEST_REASON, blank=True, default="")
    dismissed_by = models.CharField(max_length=200, blank=True, default="")
    dismissed_at = models.DateTimeField(null=True)
    dismiss_reason = models.CharField(max_length=LONGEST_REASON, blank=True, default="")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("bank_account", "bank_reference"), name="bank_line_once"),
            models.CheckConstraint(
                name="bank_line_assigned_within_its_amount",
                condition=Q(assigned_cents=0) | Q(assigned_cents__gt=0, assigned_cents__lte=F("amount_cents")),
            ),
            models.CheckConstraint(name="bank_line_of_something", condition=~Q(amount_cents=0)),
            models.CheckConstraint(
                name="bank_line_matched_if_all_is_assigned",
                condition=Q(state="matched", assigned_cents=F("amount_cents"))
                | (~Q(state="matched") & ~Q(assigned_cents=F("amount_cents"))),
            ),
            models.CheckConstraint(
                name="bank_line_dismissed_with_reason",
                condition=(~Q(state="dismissed") & Q(dismissed_at=None))
                | (Q(state="dismissed", dismissed_at__isnull=False) & ~Q(dismiss_reason="") & ~Q(dismissed_by="")),
            ),
        )
        indexes = (models.Index(fields=("state", "-id"), name="bank_lines_by_state"),)

    def __str__(self) -> str:
        return f"{self.bank_account} {self.bank_reference}"

    @property
    def rest_cents(self) -> int:
        """What of it is not assigned."""
        return self.amount_cents - self.assigned_cents


class BankAssignment(models.Model):
    """A payment of an invoice that a line of a bank statement became. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    line = models.ForeignKey(BankLine, on_delete=models.PROTECT, related_name="assignments")
    payment = models.OneToOneField(InvoicePayment, on_delete=models.PROTECT, related_name="bank_assignment")
    assigned_by = models.CharField(max_length=200)
    assigned_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return f"{self.payment_id} of {self.line_id}"


class BankCredit(models.Model):
    """Prepaid credit that the rest of a line of a bank statement became. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    line = models.ForeignKey(BankLine, on_delete=models.PROTECT, related_name="credits")
    entry = models.OneToOneField(CreditEntry, on_delete=models.PROTECT, related_name="bank_credit")
    kept_by = models.CharField(max_length=200)
    kept_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return f"{self.entry_id} of {self.line_id}"


class PaymentUndone(models.Model):
    """A payment of an invoice that counts no more, with the posting that takes it back. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    payment = models.OneToOneField(InvoicePayment, on_delete=models.PROTECT, related_name="undone")
    transaction = models.OneToOneField(
        "billing.LedgerTransaction", on_delete=models.PROTECT, related_name="payment_undone"
    )
    reason = models.CharField(max_length=LONGEST_REASON)
    undone_by = models.CharField(max_length=200)
    undone_at = models.DateTimeField(db_default=Now(), editable=False)
    #: What it had become by a credit note and was taken back from prepaid credit: so much less is to be paid.
    credit_cents = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        verbose_name_plural = "payments undone"

    def __str__(self) -> str:
        return f"{self.payment_id}"


class PaymentFailure(models.Model):
    """A payment of an invoice that failed, such as a card that was declined. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="payment_failures")
    #: The attempt's own id, once for each invoice: the same failure is not noted twice.
    reference = models.CharField(max_length=LONGEST_REFERENCE)
    reason = models.CharField(max_length=LONGEST_REASON)
    #: Where the invoice's issuer is.
    failed_on = models.DateField()
    recorded_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("invoice", "reference"), name="payment_failure_once"),)

    def __str__(self) -> str:
        return f"{self.reference} for {self.invoice_id}"
