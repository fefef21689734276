"""Events: what happened, written in the transaction that made it happen."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id
from tenants.models import Tenant


class Event(models.Model):
    """Something that happened, once. ``notifications.outbox.emit`` writes it, and nothing changes what it says."""

    #: The CloudEvents id, which receivers recognise repetitions by.
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    #: ``notifications.event_types``.
    type = models.CharField(max_length=100)
    #: None: about the platform, for operators alone.
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="events")
    #: What it is about, as kind/id.
    subject = models.CharField(max_length=200)
    data = models.JSONField()
    #: A second event of this type and tenant with the same key is not written.
    dedupe_key = models.CharField(max_length=200)
    #: Who gets an e-mail beside the people whose role it is.
    mail_addresses = ArrayField(models.CharField(max_length=254), default=list, db_default=[])
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    #: When it was turned into deliveries and e-mails; None: that is still to be done.
    dispatched_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("type", "tenant", "dedupe_key"), nulls_distinct=False, name="event_once"),
        )
        indexes = (
            models.Index(fields=("tenant", "-id"), name="events_by_tenant"),
            models.Index(fields=("id",), condition=Q(dispatched_at=None), name="events_to_dispatch"),
        )

    def __str__(self) -> str:
        return f"{self.type} {self.id}"
