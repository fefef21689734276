"""What teams without invoices are charged by: lines of closed months by project, codes of the general ledger."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Cast, Now

from billing.models.books import BillingMonth
from tenants.ids import new_id

LONGEST_CODE = 64


class MonthProjectLine(models.Model):
    """The part of a closing's lines that one project used. Never changed.

    The parts of all projects add up to the closing's ``MonthLine`` rows. Closings of earlier releases have none.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    closing = models.ForeignKey(BillingMonth, on_delete=models.PROTECT, related_name="project_lines")
    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    position = models.PositiveIntegerField()
    #: As ``MonthLine``.
    adjusts_month = models.CharField(max_length=7, blank=True, default="")
    model_name = models.CharField(max_length=200)
    token_class = models.CharField(max_length=16)
    priority = models.CharField(max_length=16)
    quantity = models.PositiveBigIntegerField()
    unit_price_pico = models.PositiveBigIntegerField()
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)
    #: The project's, else the tenant's, when the month was closed. None: an earlier release closed it.
    cost_centre = models.CharField(max_length=64, null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("closing", "position"), name="month_project_line_once"),
            models.CheckConstraint(
                name="month_project_line_is_quantity_times_price",
                condition=Q(
                    amount_pico=Cast("quantity", models.DecimalField(max_digits=38, decimal_places=0))
                    * F("unit_price_pico")
                ),
            ),
        )

    def __str__(self) -> str:
        return f"{self.closing_id} {self.position}"


class GlCode(models.Model):
    """The general ledger's code for lines of a class and a model; empty: of any. The most exact one counts."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    #: A class of lines, or ``terms``, ``rounding`` or ``credit``.
    line_class = models.CharField(max_length=16, blank=True, default="")
    model_name = models.CharField(max_length=200, blank=True, default="")
    code = models.CharField(max_length=LONGEST_CODE)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("line_class", "model_name"), name="gl_code_once"),
            models.CheckConstraint(name="gl_code_not_empty", condition=~Q(code="")),
        )

    def __str__(self) -> str:
        return self.code
