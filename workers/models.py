"""What runs the models: pools, nodes, slots and leases, deployments, replicas and placeholders."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.ids import new_id
from workers.deferred_models import DeferredRequest  # noqa: F401 - Django looks for models here


class Level(models.TextChoices):
    """How warm capacity is, coldest first."""

    COLD = "cold"
    #: A lease on a slot: the slot is known to be free, nothing runs on it.
    H0 = "h0"
    #: A zygote: a process with the engine imported that becomes the replica.
    H2 = "h2"


PLACEHOLDER_LEVELS = ((Level.H0, Level.H0.label), (Level.H2, Level.H2.label))


class Pool(models.Model):
    """Nodes of one kind in one region. ``priority`` orders pools: the lowest number is filled first."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    kind = models.CharField(max_length=16, choices=(("gpu", "gpu"), ("cpu", "cpu"), ("simulated", "simulated")))
    region = models.CharField(max_length=63, default="local")
    priority = models.PositiveSmallIntegerField(default=100)
    #: Warm placeholders that each node keeps while it has slots for them.
    placeholders_per_node = models.PositiveSmallIntegerField(default=0)
    placeholder_level = models.CharField(max_length=8, choices=PLACEHOLDER_LEVELS, default=Level.H2)
    #: Shares of what a deployment can serve in the pool: above the first its next pool is prepared, below the second
    #: that is given up again.
    high_water = models.FloatField(default=0.7)
    low_water = models.FloatField(default=0.45)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="pool_water_marks",
                condition=Q(low_water__gt=0) & Q(low_water__lt=F("high_water")) & Q(high_water__lte=1),
            ),
        )

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A machine with an agent. The agent with the highest epoch owns it; older ones may not write."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=200, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    #: Where its engines answer.
    address = models.CharField(max_length=200, default="127.0.0.1")
    boot_id = models.CharField(max_length=64, blank=True, default="")
    epoch = models.BigIntegerField(default=0)
    agent_pid = models.PositiveIntegerField(null=True, blank=True)
    #: The agent's own heartbeat; compare it with the database's now(), never with an agent's clock.
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    cordoned = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.name


class Slot(models.Model):
    """A place for one engine rank: a GPU by its UUID, or a share of a CPU. Its agent finds it and judges its health."""

    class Health(models.TextChoices):
        OK = "ok"
        #: It failed, or did not become free in time; see ``fault``. An operator restores it.
        QUARANTINED = "quarantined"
        #: The node no longer has it.
        GONE = "gone"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="slots")
    device_uuid = models.CharField(max_length=64)
    index = models.PositiveSmallIntegerField()
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    health = models.CharField(max_length=16, choices=Health.choices, default=Health.OK)
    fault = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("node", "device_uuid"), name="slot_once_per_node"),)

    def __str__(self) -> str:
        return f"{self.node_id}[{self.index}]"


class Deployment(models.Model):
    """A revision to keep running, and how many replicas of it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="deployments")
    #: Written by scaling, between the minimum and the maximum; those are the operator's.
    desired_replicas = models.PositiveSmallIntegerField(default=1)
    min_replicas = models.PositiveSmallIntegerField(default=1)
    max_replicas = models.PositiveSmallIntegerField(default=1)
    #: Slots of one node that each replica takes: its tensor-parallel size.
    slots_per_replica = models.PositiveSmallIntegerField(default=1)
    #: Tokens in flight, prompt and answer, that one replica is meant to have.
    target_tokens_per_replica = models.PositiveIntegerField(default=16_384)
    scale_up_delay_seconds = models.FloatField(default=5.0)
    scale_down_delay_seconds = models.FloatField(default=300.0)
    #: Longest time that a replica which is given up may take to finish its requests.
    drain_seconds = models.PositiveIntegerField(default=600)
    #: Since when the load has asked for more, or for less, than there is; and the most it asked for meanwhile.
    more_wanted_since = models.DateTimeField(null=True, blank=True)
    less_wanted_since = models.DateTimeField(null=True, blank=True)
    less_wanted_peak = models.PositiveSmallIntegerField(default=0)
    #: An earlier load, to tell how fast it grows.
    sampled_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    sampled_at = models.DateTimeField(null=True, blank=True)
    pools: models.ManyToManyField[Pool, DeploymentPool] = models.ManyToManyField(Pool, through="DeploymentPool")
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
    """One pool of a deployment; the lowest sequence is filled first, the next takes the overflow."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT)
    sequence = models.PositiveSmallIntegerField(default=1)
    #: At least so many replicas are here, whatever the pools before it have room for: they prepare for overflow.
    prepared_replicas = models.PositiveSmallIntegerField(default=0)
    #: Since when the pool before this one has been below its low water.
    not_needed_since = models.DateTimeField(null=True, blank=True)

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
        #: It has its slots; what was on them is being removed.
        RESERVED = "reserved"
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
    revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="replicas")
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="replicas")
    #: The warm placeholder whose process it becomes.
    placeholder = models.OneToOneField(
        "Placeholder", null=True, blank=True, on_delete=models.PROTECT, related_name="replica"
    )
    desired_state = models.CharField(max_length=16, choices=Desired.choices, default=Desired.RUNNING)
    #: An operator drains it: it serves until its replacement does, and stops then. See ``placement.plan``.
    leaving = models.BooleanField(default=False, db_default=False)
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
    #: When this start was decided; it ends with the first canary token.
    reserved_at = models.DateTimeField(null=True, blank=True)
    #: From how warm this process was started, and why not from warmer.
    start_level = models.CharField(max_length=8, choices=Level.choices, blank=True, default="")
    start_note = models.CharField(max_length=500, blank=True, default="")
    #: Measured: seconds from spawn or promotion to the first canary token.
    startup_seconds = models.FloatField(null=True, blank=True)
    #: Requests that have not ended by then are cut.
    drain_deadline = models.DateTimeField(null=True, blank=True)
    running_requests = models.PositiveIntegerField(default=0)
    waiting_requests = models.PositiveIntegerField(default=0)
    kv_usage = models.FloatField(default=0.0)
    #: Blocks in its prefix cache, as the node's KV relay counts them.
    cached_blocks = models.PositiveIntegerField(null=True, blank=True)
    observed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(fields=("node", "state"), name="replica_by_node"),)

    def __str__(self) -> str:
        return f"{self.deployment_id}/{str(self.id)[-6:]}"


class Placeholder(models.Model):
    """Warm capacity: a slot held ready for a replica. Gives way to a replica at once.

    Reconcile creates rows and decides on promotion and eviction; the node's agent writes the rest, under the node's
    epoch and the placeholder's fence.
    """

    class State(models.TextChoices):
        REQUESTED = "requested"
        WARMING = "warming"
        WARM = "warm"
        #: Consumed: its slot is its replica's, and so is its process.
        PROMOTED = "promoted"
        #: Its slot is somebody else's already; its process is about to be killed.
        EVICTING = "evicting"
        EVICTED = "evicted"
        LOST = "lost"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="placeholders")
    #: Whose model it has prepared for; it can become any model of its engine.
    deployment = models.ForeignKey(
        Deployment, null=True, blank=True, on_delete=models.SET_NULL, related_name="placeholders"
    )
    engine = models.CharField(max_length=16, blank=True, default="")
    target_level = models.CharField(max_length=8, choices=PLACEHOLDER_LEVELS)
    #: What it really is now.
    level = models.CharField(max_length=8, choices=PLACEHOLDER_LEVELS, default=Level.H0)
    state = models.CharField(max_length=16, choices=State.choices, default=State.REQUESTED)
    state_since = models.DateTimeField(db_default=Now())
    #: Why it is in this state, or not as warm as it should be.
    reason = models.CharField(max_length=500, blank=True, default="")
    fence = models.BigIntegerField(default=0)
    pid = models.PositiveIntegerField(null=True, blank=True)
    pid_start_ticks = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=64, blank=True, default="")
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    #: Measured: seconds from spawn to warm.
    warm_seconds = models.FloatField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(fields=("node", "state"), name="placeholder_by_node"),)

    def __str__(self) -> str:
        return f"{self.level}/{str(self.id)[-6:]}"


class SlotLease(models.Model):
    """Who has a slot. One open lease per slot, by the database's own constraint; see
    ``workers.scheduler.slot_leases``."""

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


class StartTime(models.Model):
    """How long one start took, from how warm. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    replica = models.ForeignKey(Replica, on_delete=models.PROTECT, related_name="start_times")
    revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="start_times")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="start_times")
    level = models.CharField(max_length=8, choices=Level.choices)
    #: From the decision to the first canary token: what a request that waits for it waits.
    seconds = models.FloatField()
    #: Of these, from spawn or promotion.
    process_seconds = models.FloatField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(F("revision"), F("level"), F("id").desc(), name="start_times"),)

    def __str__(self) -> str:
        return f"{self.level} {self.seconds:.1f} s"


class ScaleDecision(models.Model):
    """One change of what is desired, with what it was decided from. Never changed."""

    class Action(models.TextChoices):
        UP = "up"
        DOWN = "down"
        #: From nothing, because a request waits.
        WAKE = "wake"
        #: A replica in the next pool before the one before it is full; and its end.
        PREPARE = "prepare"
        RELEASE = "release"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="decisions")
    #: The pool that is prepared or released.
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


class GatewayLoad(models.Model):
    """What one gateway process has in flight for one deployment, as it last said; see
    ``workers.serving.gateway_load``."""

    process = models.CharField(max_length=200)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="loads")
    in_flight_requests = models.PositiveIntegerField(default=0)
    in_flight_tokens = models.PositiveBigIntegerField(default=0)
    #: Requests that wait for a first replica, and their tokens.
    held_requests = models.PositiveIntegerField(default=0)
    held_tokens = models.PositiveBigIntegerField(default=0)
    reported_at = models.DateTimeField(db_default=Now())
    #: When it last had a request: short ones begin and end between two reports.
    busy_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("process", "deployment"), name="load_once_per_process"),)

    def __str__(self) -> str:
        return f"{self.process}: {self.in_flight_tokens} tokens"


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
