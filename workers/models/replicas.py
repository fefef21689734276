"""Replicas, their transitions, and how long their starts took."""

from __future__ import annotations

from django.db import models
from django.db.models import F
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.ids import new_id
from workers.models.deployments import Deployment
from workers.models.nodes import Level, Node, Pool


class Replica(models.Model):
    """One engine: its desired and its observed state.

    Reconcile creates rows, writes ``desired_state`` and marks replicas of a silent node lost; the node's agent
    writes the rest. Every agent write names the node's epoch and the replica's fence, so a zombie changes nothing.
    """

    class Desired(models.TextChoices):
        RUNNING = "running"
        STOPPED = "stopped"

    class State(models.TextChoices):
        REQUESTED = "requested"
        #: It has its slots; processes of earlier holders are being removed from them.
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

    class Canary(models.TextChoices):
        NONE = ""
        PENDING = "pending"
        RUNNING = "running"
        PASSED = "passed"
        FAILED = "failed"

    #: What its canary must be before it gets requests.
    PROVEN = (Canary.NONE, Canary.PASSED)

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="replicas")
    revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="replicas")
    node = models.ForeignKey(Node, null=True, on_delete=models.PROTECT, related_name="replicas")
    #: The placeholder that it was promoted from.
    placeholder = models.OneToOneField(
        "Placeholder", null=True, blank=True, on_delete=models.PROTECT, related_name="replica"
    )
    #: The rollout that made it.
    rollout = models.ForeignKey("Rollout", null=True, blank=True, on_delete=models.PROTECT, related_name="replicas")
    #: Whether it passed its rollout's canary. One that did not gets no requests.
    canary = models.CharField(max_length=16, choices=Canary.choices, blank=True, default="", db_default="")
    #: What the canary found.
    canary_note = models.CharField(max_length=500, blank=True, default="", db_default="")
    #: Since when the canary is in this state.
    canary_at = models.DateTimeField(null=True, blank=True)
    desired_state = models.CharField(max_length=16, choices=Desired.choices, default=Desired.RUNNING)
    #: An operator drains it: it serves until its replacement is ready, then stops. See ``placement.plan``.
    leaving = models.BooleanField(default=False, db_default=False)
    #: It leaves because an earlier pool works again, and nobody wants its slots: it never stops without a replacement.
    moves_back = models.BooleanField(default=False, db_default=False)
    state = models.CharField(max_length=16, choices=State.choices, default=State.REQUESTED)
    state_since = models.DateTimeField(db_default=Now())
    fence = models.BigIntegerField(default=0)
    #: What its engine calls the model, where the model has been renamed since; empty: the model's name.
    served_name = models.CharField(max_length=200, blank=True, default="", db_default="")
    #: Number of engine processes so far. A new process has an empty prefix cache.
    generation = models.PositiveIntegerField(default=0)
    #: The generation whose engine speaks TLS. Another one, or none: the engine speaks plain HTTP, as every engine of an
    #: agent of the version before.
    tls_generation = models.PositiveIntegerField(null=True, blank=True)
    host = models.CharField(max_length=200, blank=True, default="")
    port = models.PositiveIntegerField(null=True, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    #: Start time of the process in clock ticks since boot. With pid and boot id it identifies one process for ever.
    pid_start_ticks = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=64, blank=True, default="")
    #: Fingerprint of the engine key that its token is derived from. Empty: the oldest key.
    engine_key = models.CharField(max_length=16, blank=True, default="", db_default="")
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True, default="")
    #: When this start was decided. The start ends with the first canary token.
    reserved_at = models.DateTimeField(null=True, blank=True)
    #: Level that this process was started from, and why not from a warmer one.
    start_level = models.CharField(max_length=8, choices=Level.choices, blank=True, default="")
    start_note = models.CharField(max_length=500, blank=True, default="")
    #: Measured from spawn or promotion to the first canary token.
    startup_seconds = models.FloatField(null=True, blank=True)
    #: Requests that are still running then are aborted.
    drain_deadline = models.DateTimeField(null=True, blank=True)
    running_requests = models.PositiveIntegerField(default=0)
    waiting_requests = models.PositiveIntegerField(default=0)
    kv_usage = models.FloatField(default=0.0)
    #: Of the last minute, as the engine says; None without a request: mean time to the first token, mean time between
    #: two tokens, and the share of prompt tokens that it had cached.
    ttft_seconds = models.FloatField(null=True, blank=True)
    tpot_seconds = models.FloatField(null=True, blank=True)
    prefix_hit_share = models.FloatField(null=True, blank=True)
    #: How many tokens its KV cache holds, as the engine says.
    cache_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    #: How many it keeps in host memory, as the engine says; None where there is none.
    host_cache_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    #: How many requests it runs at once, as the engine says; further ones wait.
    max_requests = models.PositiveIntegerField(null=True, blank=True)
    #: The longest prompt and completion together, as the engine says.
    context_tokens = models.PositiveIntegerField(null=True, blank=True)
    #: When its agent last wrote what its engine does. Of an idle one that is up to a quarter of a minute ago.
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
    #: The end of the engine's log where it failed; see ``workers.engines.engine_log``. Lists leave it unread.
    log_tail = models.TextField(blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(F("replica"), F("id").desc(), name="replica_events"),)

    def __str__(self) -> str:
        return f"{self.from_state} → {self.to_state}"


class StartTime(models.Model):
    """How long one start took, and from which level. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    replica = models.ForeignKey(Replica, on_delete=models.PROTECT, related_name="start_times")
    revision = models.ForeignKey(ModelRevision, on_delete=models.PROTECT, related_name="start_times")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="start_times")
    level = models.CharField(max_length=8, choices=Level.choices)
    #: From the decision to the first canary token: the wait of a request that was queued for it.
    seconds = models.FloatField()
    #: The part from spawn or promotion on.
    process_seconds = models.FloatField()
    #: Parts of the start, None where unknown: waiting for the model's files to come onto the node, which only its first
    #: start there does; and of the process, as its engine's log says. See ``workers.engines.start_parts``.
    fetch_seconds = models.FloatField(null=True, blank=True)
    load_seconds = models.FloatField(null=True, blank=True)
    compile_seconds = models.FloatField(null=True, blank=True)
    warm_up_seconds = models.FloatField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(F("revision"), F("level"), F("id").desc(), name="start_times"),)

    def __str__(self) -> str:
        return f"{self.level} {self.seconds:.1f} s"
