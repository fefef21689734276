"""What runs the models: pools, nodes, slots, deployments, replicas; and requests answered later."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.ids import new_id
from tenants.models import ApiKey, Project, Tenant


class Pool(models.Model):
    """Nodes of one kind in one region. ``priority`` orders pools: the lowest number is filled first."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    kind = models.CharField(max_length=16, choices=(("gpu", "gpu"), ("cpu", "cpu"), ("simulated", "simulated")))
    region = models.CharField(max_length=63, default="local")
    priority = models.PositiveSmallIntegerField(default=100)

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A machine with an agent. The agent with the highest epoch owns it; older ones may not write."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=200, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    boot_id = models.CharField(max_length=64, blank=True, default="")
    epoch = models.BigIntegerField(default=0)
    agent_pid = models.PositiveIntegerField(null=True, blank=True)
    #: The agent's own heartbeat; compare it with the database's now(), never with an agent's clock.
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    cordoned = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.name


class Slot(models.Model):
    """A place for one engine rank: a GPU by its UUID, or a share of a CPU."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="slots")
    device_uuid = models.CharField(max_length=64)
    index = models.PositiveSmallIntegerField()
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    health = models.CharField(max_length=16, choices=(("ok", "ok"), ("quarantined", "quarantined")), default="ok")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("node", "device_uuid"), name="slot_once_per_node"),)

    def __str__(self) -> str:
        return f"{self.node_id}[{self.index}]"


class Deployment(models.Model):
    """A revision to keep running, and how many replicas of it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="deployments")
    desired_replicas = models.PositiveSmallIntegerField(default=1)
    pools: models.ManyToManyField[Pool, DeploymentPool] = models.ManyToManyField(Pool, through="DeploymentPool")
    archived_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name


class DeploymentPool(models.Model):
    """One pool of a deployment; the lowest sequence is filled first, the next takes the overflow."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT)
    sequence = models.PositiveSmallIntegerField(default=1)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("deployment", "pool"), name="pool_once_per_deployment"),
            models.UniqueConstraint(fields=("deployment", "sequence"), name="sequence_once_per_deployment"),
        )

    def __str__(self) -> str:
        return f"{self.deployment_id} #{self.sequence}"


class Replica(models.Model):
    """One engine, wanted and observed.

    Reconcile creates rows, writes ``desired_state`` and marks replicas of a silent node lost; the node's agent
    writes the rest. Every agent write names the node's epoch and the replica's fence, so a zombie changes nothing.
    """

    class Desired(models.TextChoices):
        RUNNING = "running"
        STOPPED = "stopped"

    class State(models.TextChoices):
        REQUESTED = "requested"
        STARTING = "starting"
        WARMING = "warming"
        READY = "ready"
        SUSPECT = "suspect"
        DRAINING = "draining"
        BACKOFF = "backoff"
        STOPPED = "stopped"
        LOST = "lost"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="replicas")
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="replicas")
    desired_state = models.CharField(max_length=16, choices=Desired.choices, default=Desired.RUNNING)
    state = models.CharField(max_length=16, choices=State.choices, default=State.REQUESTED)
    state_since = models.DateTimeField(db_default=Now())
    fence = models.BigIntegerField(default=0)
    #: Counts engine processes of this replica: a new one has an empty prefix cache.
    generation = models.PositiveIntegerField(default=0)
    host = models.CharField(max_length=200, blank=True, default="")
    port = models.PositiveIntegerField(null=True, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    #: Start time of the process in clock ticks since boot: with pid and boot id it names one process for ever.
    pid_start_ticks = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=64, blank=True, default="")
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True, default="")
    #: Measured: seconds from spawn to the first canary token.
    startup_seconds = models.FloatField(null=True, blank=True)
    running_requests = models.PositiveIntegerField(default=0)
    waiting_requests = models.PositiveIntegerField(default=0)
    kv_usage = models.FloatField(default=0.0)
    observed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(fields=("node", "state"), name="replica_by_node"),)

    def __str__(self) -> str:
        return f"{self.deployment_id}/{str(self.id)[-6:]}"


class ReplicaEvent(models.Model):
    """One transition of a replica, with its reason. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    replica = models.ForeignKey(Replica, on_delete=models.PROTECT, related_name="events")
    from_state = models.CharField(max_length=16)
    to_state = models.CharField(max_length=16)
    reason = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(F("replica"), F("id").desc(), name="replica_events"),)

    def __str__(self) -> str:
        return f"{self.from_state} → {self.to_state}"


class DeferredRequest(models.Model):
    """A request whose sender preferred an asynchronous answer (RFC 7240, ``respond-async``).

    The body waits here, not on the broker, so that no prompt ever passes through it.
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT)
    endpoint = models.CharField(max_length=64)
    headers = models.JSONField(default=dict)
    body = models.BinaryField()
    state = models.CharField(max_length=16, choices=State.choices, default=State.QUEUED)
    status = models.PositiveSmallIntegerField(null=True)
    response_headers = models.JSONField(default=dict)
    response = models.BinaryField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    #: Tasks that have taken it: a second one takes over when the first died.
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    #: After this the body and the answer are erased.
    expires_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="deferred_done_has_status", condition=~Q(state="done") | Q(status__isnull=False)
            ),
        )
        indexes = (models.Index(fields=("state", "created_at"), name="deferred_by_state"),)

    def __str__(self) -> str:
        return str(self.id)
