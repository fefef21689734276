"""Plans: what is agreed with tenants beyond list prices, and what a closing made of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id

_FIRST_DAY = Q(from_month__day=1)


class Plan(models.Model):
    """A named agreement, for tenants to which it is assigned. Never changed; its versions have the terms."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    #: The only tenant to which it may be assigned; None: any.
    tenant_id = models.UUIDField(null=True)
    currency = models.CharField(max_length=3)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.name


class PlanVersion(models.Model):
    """The terms of a plan from one month on, until its next version. A trigger keeps those whose month has begun."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="versions")
    #: The first day of the month.
    from_month = models.DateField()
    #: ``billing.plans.terms.Terms``.
    terms = models.JSONField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("plan", "from_month"), name="plan_version_once"),
            models.CheckConstraint(name="plan_version_from_first_day", condition=_FIRST_DAY),
        )

    def __str__(self) -> str:
        return f"{self.plan_id} from {self.from_month:%Y-%m}"


class TenantPlan(models.Model):
    """A tenant's plan from one month on, until its next row. A trigger keeps rows whose month has begun."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    #: None: list prices alone.
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, null=True, related_name="tenants")
    #: The first day of the month.
    from_month = models.DateField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant_id", "from_month"), name="tenant_plan_once"),
            models.CheckConstraint(name="tenant_plan_from_first_day", condition=_FIRST_DAY),
        )

    def __str__(self) -> str:
        return f"{self.tenant_id} from {self.from_month:%Y-%m}"


class MonthTermsLine(models.Model):
    """What one of the terms adds to a closed month, or takes from it, with its posting. Never changed.

    Reopening the month adds a row that reverses it.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    closing = models.ForeignKey("billing.BillingMonth", on_delete=models.PROTECT, related_name="terms_lines")
    transaction = models.OneToOneField("billing.LedgerTransaction", on_delete=models.PROTECT, related_name="terms_line")
    tenant_id = models.UUIDField()
    #: The month as YYYY-MM.
    billed_month = models.CharField(max_length=7)
    position = models.PositiveIntegerField()
    is_reversal = models.BooleanField(default=False)
    #: ``billing.plans.calculation.TermsLine``.
    kind = models.CharField(max_length=16)
    text = models.CharField(max_length=300)
    tokens = models.PositiveBigIntegerField(null=True)
    #: Negative: the tenant owes less.
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("closing", "position", "is_reversal"), name="month_terms_line_once"),
        )
        indexes = (models.Index(fields=("tenant_id", "billed_month"), name="terms_lines_by_month"),)

    def __str__(self) -> str:
        return f"{self.closing_id} {self.position}"
