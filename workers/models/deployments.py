"""Deployments: which revision runs, with how many replicas, in which pools."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from catalogue.models import ModelRevision
from tenants.ids import new_id
from workers.models.nodes import Node, Pool

#: The target load of a replica that nobody has set and nothing was learned about.
DEFAULT_TARGET_TOKENS = 16_384


class Deployment(models.Model):
    """A revision to keep running, and how many replicas of it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="deployments")
    #: Written by the autoscaler, within the bounds that the operator sets.
    desired_replicas = models.PositiveSmallIntegerField(default=1)
    min_replicas = models.PositiveSmallIntegerField(default=1)
    max_replicas = models.PositiveSmallIntegerField(default=1)
    #: Slots of one node that each replica takes: its tensor-parallel size.
    slots_per_replica = models.PositiveSmallIntegerField(default=1)
    #: Target load of one replica: prompt and completion tokens in flight. If ``learns_target``, it counts until one is
    #: learned, see ``LoadCurve``.
    target_tokens_per_replica = models.PositiveIntegerField(default=DEFAULT_TARGET_TOKENS)
    learns_target = models.BooleanField(default=True, db_default=True)
    scale_up_delay_seconds = models.FloatField(default=5.0)
    scale_down_delay_seconds = models.FloatField(default=300.0)
    #: How long a draining replica may take to finish its requests.
    drain_seconds = models.PositiveIntegerField(default=600)
    #: Since when the load has required more, or fewer, replicas than desired; and the largest number it required while
    #: it required fewer.
    more_wanted_since = models.DateTimeField(null=True, blank=True)
    less_wanted_since = models.DateTimeField(null=True, blank=True)
    less_wanted_peak = models.PositiveSmallIntegerField(default=0)
    #: Since when a replica has found no node, and the node whose slots are kept for it meanwhile; see ``reservation``.
    waits_since = models.DateTimeField(null=True, blank=True)
    kept_node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="kept_for")
    #: An earlier load, from which the growth rate is computed.
    sampled_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    sampled_at = models.DateTimeField(null=True, blank=True)
    pools: models.ManyToManyField[Pool, DeploymentPool] = models.ManyToManyField(Pool, through="DeploymentPool")
    #: How its requests choose a replica, as ``catalogue.routing_policy`` writes it; None for the default.
    routing = models.JSONField(null=True, blank=True)
    #: How its replicas are replaced, as ``workers.serving.rollout_policy`` writes it; None for the default.
    rollout = models.JSONField(null=True, blank=True)
    #: What its pools must have, as ``workers.serving.pool_requirements`` writes it; None for nothing.
    requires = models.JSONField(null=True, blank=True)
    #: Signals of its engines that scaling follows, as ``scheduler.scaling.scaling_signals`` writes them; None for none.
    objectives = models.JSONField(null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="deployment_bounds",
                condition=Q(min_replicas__lte=F("desired_replicas")) & Q(desired_replicas__lte=F("max_replicas")),
            ),
            models.CheckConstraint(name="deployment_takes_slots", condition=Q(slots_per_replica__gte=1)),
            models.CheckConstraint(name="deployment_has_target", condition=Q(target_tokens_per_replica__gte=1)),
        )

    def __str__(self) -> str:
        return self.name


class DeploymentPool(models.Model):
    """One pool of a deployment. The lowest sequence is filled first; the next one takes the overflow."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT)
    sequence = models.PositiveSmallIntegerField(default=1)
    #: Minimum number of replicas in this pool, ready for overflow even while earlier pools have free slots.
    prepared_replicas = models.PositiveSmallIntegerField(default=0)
    #: Since when the previous pool has been below its low water mark.
    not_needed_since = models.DateTimeField(null=True, blank=True)
    #: Since when later pools have had its replicas because no node of it works; None once those are back.
    failed_over_at = models.DateTimeField(null=True, blank=True)
    #: Since when it has worked again.
    works_since = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("deployment", "pool"), name="pool_once_per_deployment"),
            models.UniqueConstraint(fields=("deployment", "sequence"), name="sequence_once_per_deployment"),
        )

    def __str__(self) -> str:
        return f"{self.deployment_id} #{self.sequence}"
