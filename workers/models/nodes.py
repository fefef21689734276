"""Machines and what they offer: pools of nodes, and the slots of each node."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from tenants.ids import new_id


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
    #: Shares of the capacity that a deployment has in the pool. Above ``high_water`` its next pool is prepared, below
    #: ``low_water`` the prepared replicas are released.
    high_water = models.FloatField(default=0.7)
    low_water = models.FloatField(default=0.45)
    #: Share of a node's available memory that files of models may take in its page cache; 0: none are staged.
    staged_share = models.FloatField(default=0.0, db_default=0.0)
    #: The GPUs of its nodes, as ``workers.sizing.gpus`` spells them; empty if nobody has said.
    gpu_type = models.CharField(max_length=63, blank=True, default="", db_default="")
    #: What operators know about its nodes, by name: deployments may require it.
    labels = models.JSONField(blank=True, default=dict, db_default={})
    #: What one slot costs in an hour, pico-dollars; None if nobody has said.
    slot_hour_pico = models.PositiveBigIntegerField(null=True, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="pool_water_marks",
                condition=Q(low_water__gt=0) & Q(low_water__lt=F("high_water")) & Q(high_water__lte=1),
            ),
            models.CheckConstraint(
                name="pool_staged_share", condition=Q(staged_share__gte=0) & Q(staged_share__lte=0.9)
            ),
        )

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A machine with an agent. The agent with the highest epoch owns it; older ones may not write."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=200, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    #: Address on which its engines listen.
    address = models.CharField(max_length=200, default="127.0.0.1")
    boot_id = models.CharField(max_length=64, blank=True, default="")
    epoch = models.BigIntegerField(default=0)
    agent_pid = models.PositiveIntegerField(null=True, blank=True)
    #: Renewed by the agent. Compare it with the database's now(), never with an agent's clock.
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    #: Host and port of the health pages of its agent and its drain, by role. Empty: the agent is of an older version.
    metrics = models.JSONField(default=dict, db_default={}, blank=True)
    cordoned = models.BooleanField(default=False)
    #: Fingerprint of the newest engine key of its agent. Empty: the agent is of a version that had one key.
    engine_key = models.CharField(max_length=16, blank=True, default="", db_default="")
    #: The epoch of its last agent that fetches models' files. Another than ``epoch``: its agent is of a version whose
    #: engines download by themselves.
    fetching_epoch = models.BigIntegerField(default=0, db_default=0)
    #: The versions of engines that it has, as ``vllm 0.32.0-0123456789ab``, and the epoch of the agent that wrote them.
    #: Another than ``epoch``: its agent is of a version that runs every revision by the one engine it has.
    engines = ArrayField(models.CharField(max_length=80), default=list, db_default=[], blank=True)
    engines_epoch = models.BigIntegerField(default=0, db_default=0)
    #: What `hearth gpu-check` last found there, as ``workers.devices.gpu_report`` reads it; empty: nothing.
    gpu_check = models.JSONField(default=dict, db_default={}, blank=True)
    #: When an operator removed it for good. What ran on it stays in the history.
    removed_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name

    @property
    def known_engines(self) -> frozenset[str]:
        """Return the versions of engines that its agent reports; empty for an agent that reports none."""
        return frozenset(self.engines) if self.engines_epoch == self.epoch else frozenset()


class NodeCertificate(models.Model):
    """What a node's agent requests to be signed, and the certificate that the control role answers with."""

    node = models.OneToOneField(Node, primary_key=True, on_delete=models.CASCADE, related_name="certificate")
    #: PEM, of a key that never leaves the node. Only the agent writes it.
    request = models.TextField()
    #: PEM; empty until the request is signed.
    certificate = models.TextField(blank=True, default="", db_default="")
    expires_at = models.DateTimeField(null=True, blank=True)
    #: The authority that signed it, by its fingerprint.
    authority = models.CharField(max_length=16, blank=True, default="", db_default="")
    #: PEM certificates of all authorities, which the node's engines accept gateways by.
    authorities = models.TextField(blank=True, default="", db_default="")
    #: The request that was answered last.
    answered = models.TextField(blank=True, default="", db_default="")
    #: Why that request was refused; empty if it was not.
    refusal = models.CharField(max_length=200, blank=True, default="", db_default="")

    def __str__(self) -> str:
        return f"certificate of {self.node_id}"


class NodeToken(models.Model):
    """A token with which a machine joins a pool; ``workers.fleet.joining.node_tokens`` derives its secret."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="node_tokens")
    #: The only name that a machine may join with; empty: any that no node has.
    node_name = models.CharField(max_length=200, blank=True, default="")
    #: Of the pepper that its secret is derived with.
    pepper_version = models.PositiveIntegerField()
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    #: The node that joined with it.
    used_by = models.CharField(max_length=200, blank=True, default="")

    def __str__(self) -> str:
        return str(self.id)


class Slot(models.Model):
    """A place for one engine rank: a GPU by its UUID, or a share of a CPU. The node's agent finds and checks it."""

    class Health(models.TextChoices):
        OK = "ok"
        #: It failed or did not become free in time; see ``fault``. It stays unused until an operator restores it.
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
    #: When its agent last took it out of use; None: never, or by an agent of an earlier version.
    quarantined_at = models.DateTimeField(null=True, blank=True)
    #: What it did when the agent last read it, by the names of ``workers.devices.provider.Reading``, and when that was.
    reading = models.JSONField(default=dict, db_default={}, blank=True)
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("node", "device_uuid"), name="slot_once_per_node"),)

    def __str__(self) -> str:
        return f"{self.node_id}[{self.index}]"
