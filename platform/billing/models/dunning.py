"""What is done about invoices that are not paid in time: by which policy, how far it is, and what holds it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.invoices import Invoice, Issuer
from tenants.ids import new_id

LONGEST_REASON = 500
LONGEST_DAYS = 365


class DunningPolicy(models.Model):
    """After how many days what is done: of an issuer's invoices, or of one tenant's, which comes before it.

    A step without days is not done.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    issuer = models.OneToOneField(Issuer, null=True, on_delete=models.PROTECT, related_name="dunning_policy")
    tenant_id = models.UUIDField(null=True, unique=True)
    reminder_days = models.PositiveSmallIntegerField(null=True)
    second_reminder_days = models.PositiveSmallIntegerField(null=True)
    notice_days = models.PositiveSmallIntegerField(null=True)
    suspension_days = models.PositiveSmallIntegerField(null=True)
    #: An invoice of which less is open is left alone.
    least_open_cents = models.PositiveBigIntegerField(default=1)
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "dunning policies"
        constraints = (
            models.CheckConstraint(
                name="dunning_policy_of_one",
                condition=Q(issuer=None, tenant_id__isnull=False) | Q(issuer__isnull=False, tenant_id=None),
            ),
            models.CheckConstraint(
                name="dunning_suspends_after_a_notice",
                condition=Q(suspension_days=None) | Q(notice_days__lt=models.F("suspension_days")),
            ),
        )

    def __str__(self) -> str:
        return f"{self.issuer_id or self.tenant_id}"


class DunningStep(models.Model):
    """One thing that was done about an invoice, once. Never changed."""

    class Kind(models.TextChoices):
        REMINDER = "reminder"
        SECOND_REMINDER = "second_reminder"
        #: The last one before a suspension, or the last of all.
        NOTICE = "notice"
        SUSPENSION = "suspension"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="dunning_steps")
    kind = models.CharField(max_length=16, choices=Kind.choices)
    #: In the tenant's billing time zone.
    taken_on = models.DateField()
    taken_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("invoice", "kind"), name="dunning_step_once"),)

    def __str__(self) -> str:
        return f"{self.kind} of {self.invoice_id}"


class DunningCase(models.Model):
    """An invoice that is late, or of which a payment failed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    invoice = models.OneToOneField(Invoice, on_delete=models.PROTECT, related_name="dunning_case")
    #: The reminder's days count from here: when it was due, or the first payment that failed if that was earlier.
    starts_on = models.DateField()
    #: Since when the tenant's requests are refused because of it; None: they are not.
    suspends_since = models.DateTimeField(null=True)
    #: What is done next, and when, as the last run found it; empty and None: nothing.
    next_kind = models.CharField(max_length=16, choices=DunningStep.Kind.choices, blank=True, default="")
    next_on = models.DateField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (
            models.Index(
                fields=("tenant_id",), condition=Q(suspends_since__isnull=False), name="dunning_cases_that_suspend"
            ),
        )

    def __str__(self) -> str:
        return f"{self.invoice_id}"


class DunningHold(models.Model):
    """Nothing is done about an invoice, or about all of a tenant's, and none suspends it: a dispute, a grace."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    #: None: all of the tenant's.
    invoice = models.ForeignKey(Invoice, null=True, on_delete=models.PROTECT, related_name="dunning_holds")
    reason = models.CharField(max_length=LONGEST_REASON)
    #: Its last day; None: until somebody ends it.
    until = models.DateField(null=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    ended_by = models.CharField(max_length=200, blank=True, default="")
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant_id", "invoice"),
                condition=Q(ended_at=None),
                nulls_distinct=False,
                name="one_dunning_hold_at_once",
            ),
        )

    def __str__(self) -> str:
        return f"{self.invoice_id or self.tenant_id}"


class DunningRun(models.Model):
    """One look at all invoices that are late. ``finished_at`` None: it runs, or ended before it was through."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    steps = models.PositiveIntegerField(default=0)
    #: Invoices and tenants that could not be looked at.
    failures = models.PositiveIntegerField(default=0)

    class Meta:
        indexes = (models.Index(fields=("-started_at",), name="dunning_runs_by_start"),)

    def __str__(self) -> str:
        return f"{self.started_at}"
