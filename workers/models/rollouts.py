"""Rollouts: how the replicas of a deployment are replaced by those of another revision."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.ids import new_id
from workers.models.deployments import Deployment
from workers.models.replicas import Replica


class Rollout(models.Model):
    """One change of what a deployment serves. Until it is done, the deployment's revision is the earlier one.

    Its replicas are those with this row as ``Replica.rollout``; all others of the deployment are earlier ones.
    """

    class State(models.TextChoices):
        RUNNING = "running"
        PAUSED = "paused"
        #: Its replicas are replaced by earlier ones.
        UNDOING = "undoing"
        DONE = "done"
        UNDONE = "undone"
        #: Another change came before it was done.
        REPLACED = "replaced"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="rollouts")
    revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="rollouts")
    slots_per_replica = models.PositiveSmallIntegerField()
    earlier_revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="+")
    earlier_slots_per_replica = models.PositiveSmallIntegerField()
    #: Ids of the pools that the deployment had before, in their order; an undo gives them back. None: it does not.
    earlier_pools = ArrayField(models.UUIDField(), null=True, blank=True)
    state = models.CharField(max_length=16, choices=State.choices, default=State.RUNNING)
    #: Why it is in this state.
    reason = models.CharField(max_length=500, blank=True, default="")
    #: What its next step waits for; empty while nothing holds it up.
    waits_for = models.CharField(max_length=500, blank=True, default="")
    #: Most replicas, old and new, that served at once since it began: what ``max_unavailable`` is counted from.
    most_serving = models.PositiveSmallIntegerField(default=0)
    #: Who began it, as the audit log names him.
    started_by = models.CharField(max_length=200, blank=True, default="")
    started_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("deployment",), condition=Q(finished_at=None), name="one_open_rollout_per_deployment"
            ),
        )
        indexes = (models.Index(F("deployment"), F("id").desc(), name="rollouts_by_deployment"),)

    def __str__(self) -> str:
        return f"{self.deployment_id}: {self.state}"


class RolloutTraffic(models.Model):
    """What one gateway process sent to one replica of an open rollout, since the process knows the replica."""

    process = models.CharField(max_length=200)
    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="traffic")
    requests = models.PositiveBigIntegerField(default=0)
    #: Those that its engine failed.
    failures = models.PositiveBigIntegerField(default=0)
    #: Streams whose first token took longer than the deployment's bound.
    slow = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "rollout traffic"
        constraints = (models.UniqueConstraint(fields=("process", "replica"), name="traffic_once_per_process"),)

    def __str__(self) -> str:
        return f"{self.process}: {self.requests} requests"
