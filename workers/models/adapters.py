"""LoRA adapters on replicas: which ones an engine has loaded, or why not."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.ids import new_id
from workers.models.replicas import Replica


class AdapterLoad(models.Model):
    """One revision of an adapter on one replica.

    Reconcile creates a row for every replica of the adapter's base, and deletes it with the replica, or once the agent
    has unloaded an adapter that is not wanted any more; the replica's agent writes the rest.
    """

    class State(models.TextChoices):
        WANTED = "wanted"
        LOADED = "loaded"
        #: The last attempt failed, see ``error``; the next one begins at ``next_attempt_at``.
        FAILED = "failed"
        UNLOADED = "unloaded"

    #: After so many failed attempts in a row, to load it or to get its files, the scheduler waits for the replica no
    #: longer, and gateways refuse its requests if it is so on every replica. One may fail because the engine is busy.
    ATTEMPTS = 3

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="adapters")
    revision = models.ForeignKey(ModelRevision, on_delete=models.CASCADE, related_name="loads")
    #: Since when it is not wanted any more; None while it is.
    unwanted_since = models.DateTimeField(null=True, blank=True)
    state = models.CharField(max_length=16, choices=State.choices, default=State.WANTED)
    state_since = models.DateTimeField(db_default=Now())
    #: The engine process that has it: a replica of a later generation has to load it again.
    generation = models.PositiveIntegerField(default=0)
    #: By which name that engine knows it.
    engine_name = models.CharField(max_length=220, blank=True, default="")
    error = models.CharField(max_length=500, blank=True, default="")
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("replica", "revision"), name="adapter_once_per_replica"),)

    def __str__(self) -> str:
        return f"{self.revision_id} on {self.replica_id}: {self.state}"
