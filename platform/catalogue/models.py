"""Models that may be called, their immutable revisions, aliases and visibility."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id
from tenants.models import Tenant


class Model(models.Model):
    """A served model name, visible to its owner and the tenants it is shared with or, if public, to every tenant."""

    class Visibility(models.TextChoices):
        PRIVATE = "private"
        PUBLIC = "public"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=200, unique=True)
    owner = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="models")
    visibility = models.CharField(max_length=16, choices=Visibility.choices, default=Visibility.PRIVATE)
    #: Ids of the tenants that see it beside its owner while it is private.
    shared_with = ArrayField(models.UUIDField(), default=list, db_default=[], blank=True)
    #: The model that this one, a LoRA adapter, changes: it runs in that one's replicas. None: a model of its own.
    base = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="adapters")
    #: Of an adapter: the revision that replicas load beside the active one, which it replaces once all have it.
    next_revision = models.ForeignKey(
        "ModelRevision", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    #: When its retirement was announced, and from when on its requests are refused; None: it does not retire.
    deprecated_at = models.DateTimeField(null=True, blank=True)
    retires_at = models.DateTimeField(null=True, blank=True)
    #: What to call instead, by its name or an alias; empty: nobody has said.
    replacement = models.CharField(max_length=200, default="", db_default="", blank=True)
    archived_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.name


class ModelAlias(models.Model):
    """Another name of a model. Usage is recorded under the model's own name."""

    name = models.CharField(max_length=200, unique=True)
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="aliases")

    class Meta:
        verbose_name_plural = "model aliases"

    def __str__(self) -> str:
        return self.name


class ModelRevision(models.Model):
    """Exactly what runs: weights, tokenizer, template and engine arguments. Never changed, only superseded."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="revisions")
    #: A Hugging Face id or an absolute folder.
    source = models.CharField(max_length=500)
    #: SHA-256 of everything that affects output: weights, tokenizer, template, engine, arguments. In every cache key.
    digest = models.CharField(max_length=64)
    engine = models.CharField(max_length=16, choices=(("vllm", "vllm"), ("simulated", "simulated")))
    engine_args = ArrayField(models.TextField(), default=list, blank=True)
    #: The version of the engine that runs it, as nodes report it. Empty: the first one that each node has.
    engine_version = models.CharField(max_length=64, default="", db_default="", blank=True)
    #: As ``catalogue.engine_options`` writes them; the slots of a replica are its deployment's.
    options = models.JSONField(default=dict, db_default={}, blank=True)
    #: Digest of a folder's files. Empty for a Hugging Face id, and in rows of a version that did not store it.
    weights_digest = models.CharField(max_length=64, default="", db_default="", blank=True)
    #: What its files say of what it can do, as ``catalogue.file_facts`` writes it; None: they were not read.
    file_facts = models.JSONField(null=True, blank=True)
    #: Of a LoRA adapter, as ``catalogue.adapters`` writes it.
    adapter = models.JSONField(null=True, blank=True)
    #: 0: the model's own, as much of it as an engine's memory holds.
    context_length_tokens = models.PositiveIntegerField()
    active_from = models.DateTimeField(db_default=Now())
    superseded_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("model", "digest"), name="revision_digest_once"),
            models.UniqueConstraint(
                fields=("model",), condition=Q(superseded_at=None), name="one_active_revision_per_model"
            ),
        )

    def __str__(self) -> str:
        return f"{self.model_id}@{self.digest[:12]}"
