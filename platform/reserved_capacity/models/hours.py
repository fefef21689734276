"""Hours of reservations, and how far their slots were available."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import F, Q

from reserved_capacity.models.reservations import CapacityReservation
from tenants.ids import new_id

HOUR = timedelta(hours=1)
HOUR_SECONDS = 3600


class ReservedHour(models.Model):
    """One hour (UTC) of a reservation, written once it is over. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    reservation = models.ForeignKey(CapacityReservation, on_delete=models.PROTECT, related_name="hours")
    tenant_id = models.UUIDField()
    starts_at = models.DateTimeField()
    slots = models.PositiveIntegerField()
    #: Slots times seconds in which they were available: ``slots`` times 3,600 if nothing was missing.
    available_seconds = models.PositiveBigIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("reservation", "starts_at"), name="reserved_hour_once"),
            models.CheckConstraint(
                name="available_is_part_of_reserved", condition=Q(available_seconds__lte=F("slots") * HOUR_SECONDS)
            ),
        )
        indexes = (models.Index(fields=("tenant_id", "-starts_at"), name="reserved_hours_by_tenant"),)

    def __str__(self) -> str:
        return f"{self.reservation_id} {self.starts_at:%Y-%m-%d %H:00}"

    @property
    def missing_seconds(self) -> int:
        """Slots times seconds in which they were not available."""
        return self.slots * HOUR_SECONDS - self.available_seconds
