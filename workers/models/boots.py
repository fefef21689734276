"""Engine processes and the last values of their own counters: the proof of usage."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id
from workers.models.replicas import Replica


class EngineBoot(models.Model):
    """One engine process of a replica, from its start to its end, and its counters at the last scrape.

    The node's agent writes it. Counters only grow within a process and are lost with it.
    """

    class End(models.TextChoices):
        #: It runs, or nobody has seen its end.
        NONE = ""
        #: Its last request had ended and its counters were read once more before it was stopped.
        ORDERLY = "orderly"
        #: Anything else: what it did after the last scrape is unknown.
        KILLED = "killed"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    replica = models.ForeignKey(Replica, on_delete=models.PROTECT, related_name="boots")
    generation = models.PositiveIntegerField()
    started_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)
    end = models.CharField(max_length=16, choices=End.choices, blank=True, default=End.NONE)
    #: False: it ran before its agent kept this row, so its counters include requests that cannot be told from others.
    whole = models.BooleanField(default=True)
    #: When the counters were last written: as they changed, or half a minute after that.
    counted_at = models.DateTimeField(null=True, blank=True)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    #: Of the prompt tokens; None if the engine has no such counter.
    cached_prompt_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    #: Sequences that came to their end.
    finished_sequences = models.PositiveBigIntegerField(default=0)
    #: Sequences that ran or waited at the last scrape.
    open_sequences = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("replica", "generation"), name="boot_once"),)
        indexes = (models.Index(fields=("ended_at",), name="boots_by_end"),)

    def __str__(self) -> str:
        return f"{self.replica_id}/{self.generation}"


#: Boots whose end nobody has written.
OPEN = Q(ended_at=None)
