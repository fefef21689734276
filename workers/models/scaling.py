"""The autoscaler's input and output: the load of each gateway process, and scale decisions."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.ids import new_id
from workers.models.deployments import Deployment
from workers.models.nodes import Pool


class GatewayLoad(models.Model):
    """What one gateway process last reported for one deployment; see ``workers.serving.gateway_load``."""

    process = models.CharField(max_length=200)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="loads")
    in_flight_requests = models.PositiveIntegerField(default=0)
    in_flight_tokens = models.PositiveBigIntegerField(default=0)
    #: Requests that wait in a queue for a replica, and their tokens.
    queued_requests = models.PositiveIntegerField(default=0, db_column="held_requests")
    queued_tokens = models.PositiveBigIntegerField(default=0, db_column="held_tokens")
    #: Tokens of requests that may run only in some regions, by the names of these.
    regional_tokens = models.JSONField(default=dict, db_default={}, blank=True)
    reported_at = models.DateTimeField(db_default=Now())
    #: When it last had a request. Short requests can begin and end between two reports.
    busy_at = models.DateTimeField(null=True)
    #: Replicas that it sends requests to; reported while the deployment has a rollout.
    replicas = ArrayField(models.UUIDField(), default=list, db_default=[], blank=True)
    #: Fingerprint of its newest engine key. Empty: the process is of a version that had one key.
    engine_key = models.CharField(max_length=16, blank=True, default="", db_default="")
    #: Fingerprint of its newest authority. Empty: the process has none, so it cannot reach an engine over TLS.
    authority = models.CharField(max_length=16, blank=True, default="", db_default="")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("process", "deployment"), name="load_once_per_process"),)

    def __str__(self) -> str:
        return f"{self.process}: {self.in_flight_tokens} tokens"


class ScaleDecision(models.Model):
    """One change of the desired replicas, with the facts it was decided from. Never changed."""

    class Action(models.TextChoices):
        UP = "up"
        DOWN = "down"
        #: From zero replicas, because a request waits.
        WAKE = "wake"
        #: Start a replica in the next pool before the previous one is full; and stop it again.
        PREPARE = "prepare"
        RELEASE = "release"
        #: Replicas are placed in a later pool because no node of an earlier one works; and one moves back.
        FAILOVER = "failover"
        FAILBACK = "failback"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="decisions")
    #: The pool that is prepared or released, or that replicas are placed in; None for other actions.
    pool = models.ForeignKey(Pool, null=True, on_delete=models.PROTECT, related_name="decisions")
    action = models.CharField(max_length=16, choices=Action.choices)
    from_replicas = models.PositiveSmallIntegerField()
    to_replicas = models.PositiveSmallIntegerField()
    reason = models.CharField(max_length=500)
    inputs = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(F("deployment"), F("id").desc(), name="scale_decisions"),)

    def __str__(self) -> str:
        return f"{self.action} {self.from_replicas} → {self.to_replicas}"


class LoadCurve(models.Model):
    """How fast replicas of one revision in one pool are at which load, and the target learned from that.

    Reconcile writes it; see ``workers.scheduler.scaling.load_curves``.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="curves")
    revision = models.ForeignKey(ModelRevision, on_delete=models.CASCADE, related_name="curves")
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="curves")
    #: As ``workers.scheduler.scaling.target_learning.Point`` has them, in order of load.
    points = models.JSONField(default=list, blank=True)
    #: The window that is being measured; None while there is no load.
    window = models.JSONField(null=True, blank=True)
    #: Tokens in flight that one replica should have; None until it was learned.
    target_tokens = models.PositiveIntegerField(null=True, blank=True)
    #: What the points say.
    reason = models.CharField(max_length=500, blank=True, default="")
    #: When the target moved last, and when the last window ended.
    moved_at = models.DateTimeField(null=True, blank=True)
    measured_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("deployment", "revision", "pool"), name="curve_once_per_pool"),
            models.CheckConstraint(name="curve_has_target", condition=Q(target_tokens=None) | Q(target_tokens__gte=1)),
        )

    def __str__(self) -> str:
        return f"{self.deployment_id}: {self.target_tokens} tokens"
