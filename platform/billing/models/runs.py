"""Changes that the role ``background`` makes one after the other, such as the invoices of a month of every tenant.

No tenant reads them: they are operators' work.
"""

from __future__ import annotations

from datetime import date

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id

LONGEST_TEXT = 500


class BillingRun(models.Model):
    """One such work: what for, who asked for it, and whether it is over."""

    class Kind(models.TextChoices):
        CLOSE_MONTHS = "close_months"
        MAKE_INVOICES = "make_invoices"
        #: Of bank statements; of no month.
        MATCH_PAYMENTS = "match_payments"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    #: One of Kind.
    kind = models.CharField(max_length=16)
    #: As YYYY-MM; empty: of no month.
    month = models.CharField(max_length=7, blank=True, default="")
    #: Who asked for it, as audit entries name them.
    actor_kind = models.CharField(max_length=8)
    actor = models.CharField(max_length=200)
    request_id = models.UUIDField(null=True)
    requested_at = models.DateTimeField(db_default=Now(), editable=False)
    stopped_by = models.CharField(max_length=200, blank=True, default="")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("kind", "month"), condition=Q(finished_at=None), name="one_billing_run_at_once"
            ),
        )
        indexes = (models.Index(fields=("kind", "month", "-id"), name="billing_runs_by_month"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.month}"

    @property
    def first_day(self) -> date:
        """The first day of the month of a run that has one."""
        return date.fromisoformat(f"{self.month}-01")


class BillingRunPart(models.Model):
    """What a run does for one tenant, or one line of a bank statement, in one transaction with the outcome."""

    class Outcome(models.TextChoices):
        WAITING = "waiting"
        DONE = "done"
        #: It had been done before.
        UNCHANGED = "unchanged"
        REFUSED = "refused"
        #: It ended with an unexpected error. A new run tries it again.
        FAILED = "failed"
        #: The run was stopped before.
        STOPPED = "stopped"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(BillingRun, on_delete=models.PROTECT, related_name="parts")
    #: The id of the tenant, or of the line.
    subject_id = models.UUIDField()
    #: One of Outcome.
    outcome = models.CharField(max_length=16, default=Outcome.WAITING)
    #: How often it was begun. More than once: the worker died, or was stopped before it was through.
    tries = models.SmallIntegerField(default=0)
    #: What was made, or why it was not.
    text = models.CharField(max_length=LONGEST_TEXT, blank=True, default="")
    done_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "subject_id"), name="billing_run_part_once"),)
        indexes = (
            models.Index(fields=("run", "id"), condition=Q(outcome="waiting"), name="billing_run_parts_waiting"),
        )

    def __str__(self) -> str:
        return f"{self.subject_id} of {self.run_id}"
