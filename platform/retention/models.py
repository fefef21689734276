"""How long records are kept, which months cannot be retired yet, and which tenants were erased."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.ids import new_id
from tenants.models import Tenant


class RetentionPolicy(models.Model):
    """One version of how long each kind of record is kept. Rows are never changed; the highest version is in force.

    None keeps records for ever. ``retention.policy.KINDS`` says what each field covers, and its bounds.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    version = models.PositiveIntegerField(unique=True)
    #: Whole months before the current one.
    requests_months = models.PositiveIntegerField(null=True, default=13)
    events_days = models.PositiveIntegerField(null=True, default=30)
    decisions_days = models.PositiveIntegerField(null=True, default=90)
    deferred_hours = models.PositiveIntegerField(default=24)
    audit_days = models.PositiveIntegerField(null=True, default=730)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return f"v{self.version}"


class HeldMonth(models.Model):
    """A month of requests that is past its retention and was not retired at the last attempt, and why."""

    #: As YYYY-MM.
    month = models.CharField(max_length=7, primary_key=True)
    reason = models.CharField(max_length=500)
    tried_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.month


class Erasure(models.Model):
    """The erasure of a tenant's personal data."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.OneToOneField(Tenant, on_delete=models.PROTECT, related_name="erasure")
    requested_at = models.DateTimeField(db_default=Now(), editable=False)
    #: When it last ran to its end; None: it did not yet.
    finished_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return str(self.tenant_id)
