"""The files of models on nodes: which a node fetches from the hub, which it has, and the secrets for that."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from catalogue.models import Model, ModelRevision
from tenants.ids import new_id
from workers.models.nodes import Node


class Weights(models.Model):
    """The files of one revision on one node.

    Reconcile creates a row where replicas may be placed, and deletes it when they may not; the node's agent writes the
    rest. Replicas are placed only where it is ready.
    """

    class State(models.TextChoices):
        WANTED = "wanted"
        FETCHING = "fetching"
        READY = "ready"
        #: The last attempt failed, see ``error``; the next one begins at ``next_attempt_at``.
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="weights")
    revision = models.ForeignKey(ModelRevision, on_delete=models.CASCADE, related_name="weights")
    state = models.CharField(max_length=16, choices=State.choices, default=State.WANTED)
    state_since = models.DateTimeField(db_default=Now())
    #: Bytes on the node's disk, and bytes in all, once the hub has given the size.
    bytes_done = models.PositiveBigIntegerField(default=0)
    bytes_total = models.PositiveBigIntegerField(null=True, blank=True)
    #: Where the files are on the node, once they are there.
    folder = models.CharField(max_length=1000, blank=True, default="")
    error = models.CharField(max_length=500, blank=True, default="")
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "weights"
        constraints = (
            models.UniqueConstraint(fields=("node", "revision"), name="weights_once_per_node"),
            models.CheckConstraint(name="ready_weights_have_folder", condition=~Q(state="ready") | ~Q(folder="")),
        )

    def __str__(self) -> str:
        return f"{self.revision_id} on {self.node_id}: {self.state}"


class StagedWeights(models.Model):
    """The files of one revision in the page cache of one node, which may soon get a replica of it.

    Reconcile creates and deletes rows and writes ``wanted_at``; the node's agent writes the rest.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="staged")
    revision = models.ForeignKey(ModelRevision, on_delete=models.CASCADE, related_name="staged")
    #: When a deployment of it last had a request or was prepared; None: not yet. The oldest is dropped first.
    wanted_at = models.DateTimeField(null=True, blank=True)
    bytes_total = models.PositiveBigIntegerField(default=0, db_default=0)
    bytes_resident = models.PositiveBigIntegerField(default=0, db_default=0)
    #: Why it is not staged, or not measured; empty if it is both.
    note = models.CharField(max_length=500, blank=True, default="", db_default="")
    measured_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "staged weights"
        constraints = (models.UniqueConstraint(fields=("node", "revision"), name="staged_once_per_node"),)

    def __str__(self) -> str:
        return f"{self.revision_id} on {self.node_id}: {self.bytes_resident}"


class Secret(models.Model):
    """A secret with which nodes read repositories on the hub, sealed; see ``workers.weights.secrets``."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    sealed = models.BinaryField()
    #: Fingerprint of the engine key that it is sealed with.
    engine_key = models.CharField(max_length=16)
    set_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class ModelSecret(models.Model):
    """Which secret a model's files are fetched with."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    model = models.OneToOneField(Model, on_delete=models.CASCADE, related_name="secret_link")
    secret = models.ForeignKey(Secret, on_delete=models.PROTECT, related_name="links")

    def __str__(self) -> str:
        return f"{self.model_id}: {self.secret_id}"
