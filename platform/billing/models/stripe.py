"""Accounts at Stripe, and what Hearth knows of its invoices, events and last comparisons there.

Stripe's objects are read from Stripe each time they matter: a row keeps what was read last.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.books import BillingMonth
from billing.models.invoices import Invoice, Issuer
from tenants.ids import new_id

LONGEST_ID = 200
LONGEST_TEXT = 500


class StripeConnection(models.Model):
    """An issuer's account at Stripe, with its secret key. One for each issuer."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    issuer = models.OneToOneField(Issuer, on_delete=models.PROTECT, related_name="stripe")
    #: ``acct_…``: another account needs another issuer, because its invoices are there.
    account_id = models.CharField(max_length=LONGEST_ID)
    is_live = models.BooleanField()
    #: Sealed under the pepper of this version; only this row's id opens it.
    sealed_key = models.BinaryField()
    pepper_version = models.PositiveIntegerField()
    #: The last characters of the key, by which people recognise it.
    key_hint = models.CharField(max_length=8)
    #: ``txr_…`` of Stripe, which computes the tax; empty: tax is a line of its own.
    tax_rate_id = models.CharField(max_length=LONGEST_ID, blank=True, default="")
    connected_by = models.CharField(max_length=200)
    connected_at = models.DateTimeField(db_default=Now(), editable=False)
    event_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.account_id


class StripeWebhookSecret(models.Model):
    """A signing secret of the connection's webhook endpoint. Two are valid while one is replaced by the other."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    connection = models.ForeignKey(StripeConnection, on_delete=models.CASCADE, related_name="webhook_secrets")
    sealed = models.BinaryField()
    pepper_version = models.PositiveIntegerField()
    hint = models.CharField(max_length=8)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    #: Not valid from then on; None: the present one.
    expires_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"…{self.hint}"


class StripeCustomer(models.Model):
    """A tenant as a customer of a Stripe account, once. ``external_id`` empty: it is about to be created."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    connection = models.ForeignKey(StripeConnection, on_delete=models.PROTECT, related_name="customers")
    external_id = models.CharField(max_length=LONGEST_ID, blank=True, default="")
    #: The default one, ``pm_…``, and what people recognise it by; empty: none is saved.
    payment_method_id = models.CharField(max_length=LONGEST_ID, blank=True, default="", db_default="")
    payment_method = models.CharField(max_length=100, blank=True, default="", db_default="")
    #: When saving the last one began, also if it was removed since: what began before does not count.
    payment_method_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant_id", "connection"), name="stripe_customer_once"),
            models.UniqueConstraint(
                fields=("connection", "external_id"), condition=~Q(external_id=""), name="stripe_customer_of_one_tenant"
            ),
        )

    def __str__(self) -> str:
        return self.external_id


class StripeInvoice(models.Model):
    """A closed month that is, or is about to be, an invoice of Stripe. One of a tenant's month is not ended.

    A trigger refuses it beside an invoice of Hearth's for the same month, and the other way round.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    connection = models.ForeignKey(StripeConnection, on_delete=models.PROTECT, related_name="invoices")
    closing = models.ForeignKey(BillingMonth, on_delete=models.PROTECT, related_name="stripe_invoices")
    year = models.PositiveSmallIntegerField()
    month = models.PositiveSmallIntegerField()
    currency = models.CharField(max_length=3)
    #: ``[{"description", "cents"}]``, as Stripe gets them: frozen, so that each try sends the same.
    lines = models.JSONField()
    #: ``{"description", "footer", "tax_id", "tax_rate_bp"}``, likewise.
    heading = models.JSONField()
    net_cents = models.BigIntegerField()
    tax_cents = models.BigIntegerField()
    #: What the tenant's credit paid.
    applied_cents = models.BigIntegerField()
    terms_days = models.PositiveSmallIntegerField()
    #: Counts the answers 5xx, which Stripe repeats for the same idempotency key.
    key_generation = models.PositiveIntegerField(default=0)
    external_id = models.CharField(max_length=LONGEST_ID, blank=True, default="")
    #: Stripe's: draft, open, paid, void, uncollectible.
    status = models.CharField(max_length=20, blank=True, default="")
    number = models.CharField(max_length=64, blank=True, default="")
    hosted_url = models.CharField(max_length=1000, blank=True, default="")
    pdf_url = models.CharField(max_length=1000, blank=True, default="")
    #: Ours, which says the same.
    mirror = models.OneToOneField(Invoice, on_delete=models.PROTECT, null=True, related_name="stripe")
    #: Why the last try stopped, or what differs.
    problem = models.CharField(max_length=LONGEST_TEXT, blank=True, default="")
    #: It waits for people: the next try comes with their push.
    is_refused = models.BooleanField(default=False)
    requested_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    tried_at = models.DateTimeField(null=True)
    #: When Stripe was asked to send it to the customer, which is the last step.
    sent_at = models.DateTimeField(null=True)
    read_at = models.DateTimeField(null=True)
    #: It is void, or its draft was deleted: the month may be invoiced again.
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant_id", "year", "month"), condition=Q(ended_at=None), name="one_stripe_invoice_per_month"
            ),
            models.UniqueConstraint(
                fields=("connection", "external_id"), condition=~Q(external_id=""), name="stripe_invoice_once"
            ),
        )

    def __str__(self) -> str:
        return self.number or self.external_id or f"{self.year}-{self.month:02}"

    @property
    def period(self) -> str:
        """The month as YYYY-MM."""
        return f"{self.year}-{self.month:02}"

    @property
    def total_cents(self) -> int:
        """With tax."""
        return self.net_cents + self.tax_cents


class StripeEvent(models.Model):
    """An event that Stripe delivered, signed, stored once. What it says is read from Stripe when it is processed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    connection = models.ForeignKey(StripeConnection, on_delete=models.CASCADE, related_name="events")
    event_id = models.CharField(max_length=LONGEST_ID)
    type = models.CharField(max_length=100)
    #: The object that it is about, and the invoice of a credit note.
    object_id = models.CharField(max_length=LONGEST_ID, blank=True, default="")
    invoice_id = models.CharField(max_length=LONGEST_ID, blank=True, default="")
    #: Of a refund or a dispute: the payment that went back, which names the invoice.
    payment_intent = models.CharField(max_length=LONGEST_ID, blank=True, default="", db_default="")
    #: In the currency's minor units, of refunds and disputes.
    amount = models.BigIntegerField(null=True)
    currency = models.CharField(max_length=3, blank=True, default="")
    #: Of a refund or a dispute: what it was when one of its events was last processed; empty: it was not read.
    object_status = models.CharField(max_length=40, blank=True, default="", db_default="")
    #: Which attempt to collect an invoice it is about.
    attempt = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField()
    received_at = models.DateTimeField(db_default=Now(), editable=False)
    tries = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField(db_default=Now())
    processed_at = models.DateTimeField(null=True)
    #: What was done, in one sentence.
    outcome = models.CharField(max_length=LONGEST_TEXT, blank=True, default="")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("connection", "event_id"), name="stripe_event_once"),)
        indexes = (
            models.Index(fields=("next_try_at",), condition=Q(processed_at=None), name="stripe_events_to_process"),
        )

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


class StripeComparison(models.Model):
    """One comparison with a Stripe account. ``finished_at`` None: it goes on after ``cursor``."""

    id = models.BigAutoField(primary_key=True)
    connection = models.ForeignKey(StripeConnection, on_delete=models.CASCADE, related_name="comparisons")
    since = models.DateTimeField()
    #: Which list it reads, and the last object of it that was compared.
    reading = models.CharField(max_length=20, default="invoices")
    cursor = models.CharField(max_length=LONGEST_ID, blank=True, default="")
    invoices = models.PositiveIntegerField(default=0)
    payments = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    problem = models.CharField(max_length=LONGEST_TEXT, blank=True, default="")

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"


class StripeFinding(models.Model):
    """Something that differs between Stripe and Hearth, found by a comparison."""

    class Kind(models.TextChoices):
        #: Hearth has it, Stripe does not.
        MISSING = "missing"
        #: Stripe has it, Hearth does not.
        EXTRA = "extra"
        AMOUNT = "amount"
        STATE = "state"
        PAYMENT = "payment"

    id = models.BigAutoField(primary_key=True)
    comparison = models.ForeignKey(StripeComparison, on_delete=models.CASCADE, related_name="findings")
    kind = models.CharField(max_length=16, choices=Kind.choices)
    #: Stripe's id of the invoice or payment; empty: it has none.
    external_id = models.CharField(max_length=LONGEST_ID, blank=True, default="")
    invoice = models.ForeignKey(StripeInvoice, on_delete=models.CASCADE, null=True, related_name="findings")
    ours = models.CharField(max_length=200, blank=True, default="")
    theirs = models.CharField(max_length=200, blank=True, default="")
    text = models.CharField(max_length=LONGEST_TEXT)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("comparison", "kind", "external_id", "invoice"),
                name="stripe_finding_once",
                nulls_distinct=False,
            ),
        )

    def __str__(self) -> str:
        return self.text
