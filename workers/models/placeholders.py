"""Placeholders, and the leases by which they and replicas have slots."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id
from workers.models.deployments import Deployment
from workers.models.nodes import PLACEHOLDER_LEVELS, Level, Node, Pool, Slot
from workers.models.replicas import Replica


class Placeholder(models.Model):
    """Warm capacity: a slot kept ready for a replica. It gives way to a replica at once.

    Reconcile creates rows and decides on promotion and eviction; the node's agent writes the rest, under the node's
    epoch and the placeholder's fence.
    """

    class State(models.TextChoices):
        REQUESTED = "requested"
        WARMING = "warming"
        WARM = "warm"
        #: It became a replica, which now has its slot and its process.
        PROMOTED = "promoted"
        #: Its slot already belongs to another holder; its process is being killed.
        EVICTING = "evicting"
        EVICTED = "evicted"
        LOST = "lost"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="placeholders")
    #: The deployment it was warmed for; it can become a replica of any model of its engine.
    deployment = models.ForeignKey(
        Deployment, null=True, blank=True, on_delete=models.SET_NULL, related_name="placeholders"
    )
    engine = models.CharField(max_length=16, blank=True, default="")
    #: Slots of the node that it has: on GPUs all that a replica of its deployment takes, elsewhere one.
    slot_count = models.PositiveSmallIntegerField(default=1, db_default=1)
    target_level = models.CharField(max_length=8, choices=PLACEHOLDER_LEVELS)
    #: Its level now.
    level = models.CharField(max_length=8, choices=PLACEHOLDER_LEVELS, default=Level.H0)
    state = models.CharField(max_length=16, choices=State.choices, default=State.REQUESTED)
    state_since = models.DateTimeField(db_default=Now())
    #: Why it is in this state, or below its target level.
    reason = models.CharField(max_length=500, blank=True, default="")
    fence = models.BigIntegerField(default=0)
    pid = models.PositiveIntegerField(null=True, blank=True)
    pid_start_ticks = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=64, blank=True, default="")
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    #: Measured from spawn to warm.
    warm_seconds = models.FloatField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(fields=("node", "state"), name="placeholder_by_node"),)

    def __str__(self) -> str:
        return f"{self.level}/{str(self.id)[-6:]}"


class SlotLease(models.Model):
    """The holder of a slot. A constraint allows one open lease per slot: ``workers.scheduler.slots.slot_leases``."""

    class Kind(models.TextChoices):
        REPLICA = "replica"
        PLACEHOLDER = "placeholder"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    slot = models.ForeignKey(Slot, on_delete=models.PROTECT, related_name="leases")
    kind = models.CharField(max_length=16, choices=Kind.choices)
    replica = models.ForeignKey(Replica, null=True, on_delete=models.PROTECT, related_name="leases")
    placeholder = models.ForeignKey(Placeholder, null=True, on_delete=models.PROTECT, related_name="leases")
    fence = models.BigIntegerField()
    acquired_at = models.DateTimeField(db_default=Now(), editable=False)
    released_at = models.DateTimeField(null=True)

    class Meta:
        #: For what the leases of placeholders cost in a period.
        indexes = (
            models.Index(fields=("released_at",), condition=Q(kind="placeholder"), name="placeholder_leases_by_end"),
        )
        constraints = (
            models.UniqueConstraint(fields=("slot",), condition=Q(released_at=None), name="slot_leased_once"),
            models.CheckConstraint(
                name="lease_has_one_holder",
                condition=Q(kind="replica", replica__isnull=False, placeholder=None)
                | Q(kind="placeholder", placeholder__isnull=False, replica=None),
            ),
        )

    def __str__(self) -> str:
        return f"{self.slot_id} {self.kind}"


class SlotWait(models.Model):
    """A time in which a deployment had a replica without a node, and may have used slots of a pool.

    Reconcile writes it; see ``workers.scheduler.slots.slot_waits``.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="slot_waits")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="slot_waits")
    began_at = models.DateTimeField(db_default=Now(), editable=False)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("deployment", "pool"), condition=Q(ended_at=None), name="one_open_wait_per_pool"
            ),
        )
        indexes = (models.Index(fields=("ended_at",), name="slot_waits_by_end"),)

    def __str__(self) -> str:
        return f"{self.deployment_id} waits for {self.pool_id}"
