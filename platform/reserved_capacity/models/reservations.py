"""Reservations: slots of a deployment that a tenant pays for, whether it uses them or not."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from tenants.ids import new_id
from tenants.models import Tenant


class CapacityReservation(models.Model):
    """Slots of one deployment for one tenant, from one full hour (UTC) to another.

    A trigger lets nothing change but its end, which may come sooner, and the names of its model.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="reservations")
    #: The deployment's name, which never changes.
    deployment = models.CharField(max_length=63)
    #: What clients called its model since: lines of usage have the name under which requests ran.
    model_names = ArrayField(models.CharField(max_length=200))
    slots = models.PositiveIntegerField()
    starts_at = models.DateTimeField()
    #: None: until somebody ends it. It is ``starts_at`` of one that was ended before it began.
    ends_at = models.DateTimeField(null=True)
    #: The tenant's, in which it pays.
    currency = models.CharField(max_length=3)
    #: Price of one slot for one hour, in pico-units.
    slot_hour_pico = models.PositiveBigIntegerField()
    #: Tokens that each slot hour includes.
    tokens_per_slot_hour = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.CheckConstraint(name="reservation_has_slots", condition=Q(slots__gte=1)),
            models.CheckConstraint(
                name="reservation_ends_after_it_begins", condition=Q(ends_at=None) | Q(ends_at__gte=F("starts_at"))
            ),
        )
        indexes = (models.Index(fields=("deployment", "starts_at"), name="reservations_by_deployment"),)

    def __str__(self) -> str:
        return f"{self.slots} slots of {self.deployment}"
