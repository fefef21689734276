"""Register models and revisions, and list the models that a tenant may call."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

import orjson
from django.db import transaction
from django.utils import timezone

from catalogue import adapters, engine_options, file_facts
from catalogue.adapters import Adapter
from catalogue.engine_options import DEFAULT as DEFAULT_OPTIONS
from catalogue.engine_options import EngineOptions
from catalogue.file_facts import FileFacts
from catalogue.models import Model, ModelAlias, ModelRevision
from tenants import audit, policy_epoch
from tenants.audit import Actor
from tenants.errors import NotAllowed, NotFound
from tenants.ids import RevisionId, TenantId
from tenants.models import Tenant
from tenants.policy import budgets


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One callable model with its active revision."""

    name: str
    owner_id: TenantId
    owner_slug: str
    public: bool
    revision_id: RevisionId
    digest: str
    #: As deployed, 0 for the model's own; the gateway's snapshot has that of the engines.
    context_length_tokens: int
    #: Unix seconds.
    created_at: int
    #: Tenants that see it beside its owner while it is private.
    shared_with: frozenset[TenantId] = frozenset()
    #: Of a LoRA adapter: the name of the model that it changes; empty for any other model.
    base: str = ""
    #: Of a LoRA adapter: the name that engines know its revision by.
    engine_name: str = ""
    #: Of a LoRA adapter: its base's active revision.
    base_revision_id: RevisionId | None = None
    aliases: tuple[str, ...] = ()
    #: Unix seconds: when its retirement was announced, and from when on it is refused; None: it does not retire.
    deprecated_at: int | None = None
    retires_at: int | None = None
    #: What to call instead, by its name or an alias; empty: nobody has said.
    replacement: str = ""
    #: What its engine was started with, and takes; of a LoRA adapter that of its base.
    engine_args: tuple[str, ...] = ()
    lora_adapters: int = 0
    #: None: its files were not read.
    file_facts: FileFacts | None = None

    @property
    def deployed_revision_id(self) -> RevisionId:
        """Return the revision that its replicas are of: that of an adapter's base, or its own."""
        return self.base_revision_id or self.revision_id

    @property
    def served_by(self) -> str:
        """Return the name of the model whose replicas serve this one: that of an adapter's base, or its own."""
        return self.base or self.name

    @property
    def prefix_name(self) -> str:
        """Return what distinguishes its prompts in an engine's KV cache: of an adapter, its revision too."""
        return self.engine_name or self.name

    def has_retired(self, now: float) -> bool:
        """Return whether it is refused at this moment, in Unix seconds."""
        return self.retires_at is not None and now >= self.retires_at

    def is_visible_to(self, tenant_id: TenantId) -> bool:
        """Return whether this tenant may call the model."""
        return self.public or self.owner_id == tenant_id or tenant_id in self.shared_with


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All served models by name, aliases included."""

    models: Mapping[str, ServedModel]

    def find(self, tenant_id: TenantId, name: str) -> ServedModel | None:
        """Return the model with this name if it is visible to the tenant, else None."""
        model = self.models.get(name)
        return model if model is not None and model.is_visible_to(tenant_id) else None

    def visible(self, tenant_id: TenantId) -> list[ServedModel]:
        """Return the models visible to the tenant, without aliases, sorted by name."""
        seen = {model.name: model for model in self.models.values() if model.is_visible_to(tenant_id)}
        return [seen[name] for name in sorted(seen)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model to serve: its source (a Hugging Face id or a folder), its engine and its visibility.

    ``weights_digest`` is a hash of the files in a folder; a Hugging Face id identifies its files by itself.
    """

    name: str
    source: str
    engine: Literal["vllm", "simulated"]
    context_length_tokens: int
    engine_args: tuple[str, ...] = ()
    weights_digest: str = ""
    public: bool = False
    options: EngineOptions = DEFAULT_OPTIONS
    #: Among which the engine divides the model.
    slots_per_replica: int = 1
    #: Empty: the first version that each node has.
    engine_version: str = ""
    #: None for a model that is no LoRA adapter.
    adapter: Adapter | None = None
    #: What its files say; None: they were not read. It changes no output and is not in the digest.
    file_facts: FileFacts | None = None

    def digest(self) -> str:
        """Return the SHA-256, in hex, of everything that affects output. What has its default adds nothing to it."""
        where = self.weights_digest or self.source
        identity: list[object] = [where, self.engine, list(self.engine_args), self.context_length_tokens]
        slots = {} if self.slots_per_replica == 1 else {"slots_per_replica": self.slots_per_replica}
        version = {"engine_version": self.engine_version} if self.engine_version else {}
        if options := engine_options.to_json(self.options) | slots | version:
            identity.append(sorted(options.items()))
        if self.adapter is not None:
            identity.append("adapter")
        return hashlib.sha256(orjson.dumps(identity)).hexdigest()


@transaction.atomic
def register(actor: Actor, owner: Tenant, described: Description) -> ModelRevision:
    """Make this exact model the active revision of its name. Idempotent. Raises NotAllowed as :func:`record` does."""
    revision = record(actor, owner, described)
    activate(actor, revision)
    return revision


@transaction.atomic
def record(
    actor: Actor,
    owner: Tenant,
    described: Description,
    *,
    slots_now: int | None = None,
    base: Model | None = None,
) -> ModelRevision:
    """Return the revision that is exactly this model, made if there is none. A new model's first one is active.

    ``slots_now``: of a replica of the active revision, if it is deployed; a revision of a version without options does
    not count them. ``base``: of a LoRA adapter, what it changes. Raises NotAllowed if the name is another tenant's, a
    new model's name is an alias of another, or the name is not that of an adapter of this ``base``.
    """
    visibility = Model.Visibility.PUBLIC if described.public else Model.Visibility.PRIVATE
    model, created = Model.objects.get_or_create(
        name=described.name, defaults={"owner": owner, "visibility": visibility, "base": base}
    )
    alias = ModelAlias.objects.filter(name=described.name).select_related("model").first() if created else None
    if created and (tenants := budgets.forget_name(model.name)):
        policy_epoch.bump(tenants=tenants)
    if alias is not None:
        raise NotAllowed("model", described.name, f"an alias of the model {alias.model.name!r}")
    if model.owner_id != owner.id:
        raise NotAllowed("model", described.name, "another tenant's")
    if model.base_id != (None if base is None else base.id):
        raise NotAllowed("model", described.name, "a LoRA adapter" if base is None else f"no adapter of {base.name!r}")
    Model.objects.select_for_update().get(id=model.id)
    digest = described.digest()
    active = ModelRevision.objects.filter(model=model, superseded_at=None).first()
    if active is not None and active.digest in _digests(described, slots_now):
        return _with_what_was_read(active, described)
    known = ModelRevision.objects.filter(model=model, digest=digest).first()
    if known is not None:
        return _with_what_was_read(known, described)
    revision = ModelRevision.objects.create(
        model=model,
        source=described.source,
        engine=described.engine,
        engine_args=list(described.engine_args),
        engine_version=described.engine_version,
        context_length_tokens=described.context_length_tokens,
        options=engine_options.to_json(described.options),
        weights_digest=described.weights_digest,
        file_facts=file_facts.to_json(described.file_facts),
        adapter=None if described.adapter is None else adapters.to_json(described.adapter),
        digest=digest,
        superseded_at=None if active is None else timezone.now(),
    )
    audit.record(
        actor,
        "model.registered" if created else "revision.registered",
        ("revision", revision.id),
        tenant=owner,
        after={
            "model": described.name,
            "source": described.source,
            "engine": described.engine,
            "engine_version": described.engine_version,
            "engine_args": list(described.engine_args),
            "options": engine_options.to_json(described.options),
            "context_length_tokens": described.context_length_tokens,
            "slots_per_replica": described.slots_per_replica,
            "digest": digest,
        },
    )
    if active is None:
        policy_epoch.bump(models=True)
    return revision


@transaction.atomic
def activate(actor: Actor, revision: ModelRevision) -> None:
    """Make this the active revision of its model: the one whose responses the prediction cache gives. Idempotent."""
    Model.objects.select_for_update().get(id=revision.model_id)
    others = ModelRevision.objects.filter(model_id=revision.model_id, superseded_at=None).exclude(id=revision.id)
    superseded = others.update(superseded_at=timezone.now())
    if not superseded and ModelRevision.objects.filter(id=revision.id, superseded_at=None).exists():
        return
    ModelRevision.objects.filter(id=revision.id).update(superseded_at=None)
    after = {"model": revision.model.name, "digest": revision.digest}
    audit.record(actor, "revision.activated", ("revision", revision.id), tenant=revision.model.owner, after=after)
    policy_epoch.bump(models=True)


def active(name: str) -> ModelRevision:
    """Return the active revision of the model of this name. Raises NotFound."""
    rows = ModelRevision.objects.select_related("model")
    found = rows.filter(model__name=name, superseded_at=None).first()
    if found is None:
        raise NotFound("model", name)
    return found


def described(revision: ModelRevision, slots: int, *, weights_digest: str = "") -> Description | None:
    """Return the description that a revision with replicas of so many slots was made from.

    ``weights_digest`` is the digest of a folder's files, for a revision that does not store it. None if the
    digest of the revision is not that of the description: its files are not known, or are others.
    """
    found = Description(
        name=revision.model.name,
        source=revision.source,
        engine=revision.engine,  # type: ignore[arg-type]  # the column has no other values
        context_length_tokens=revision.context_length_tokens,
        engine_args=tuple(revision.engine_args),
        weights_digest=revision.weights_digest or weights_digest,
        options=engine_options.from_json(revision.options),
        slots_per_replica=slots,
        engine_version=revision.engine_version,
    )
    return found if revision.digest in _digests(found, slots) else None


def load() -> Catalogue:
    """Read the catalogue from the database. An adapter is served while its base is."""
    revisions = ModelRevision.objects.select_related("model", "model__owner", "model__base").filter(
        superseded_at=None, model__archived_at=None
    )
    active = {revision.model_id: revision for revision in revisions}
    aliases: dict[UUID, list[str]] = defaultdict(list)
    for alias in ModelAlias.objects.order_by("name"):
        aliases[alias.model_id].append(alias.name)
    by_model = {
        model_id: _served(
            revision,
            active.get(revision.model.base_id) if revision.model.base_id else None,
            tuple(aliases[model_id]),
        )
        for model_id, revision in active.items()
        if revision.model.base_id is None or revision.model.base_id in active
    }
    models = {served.name: served for served in by_model.values()}
    for served in by_model.values():
        for name in served.aliases:
            models.setdefault(name, served)
    return Catalogue(models=models)


def _digests(described: Description, slots_now: int | None) -> set[str]:
    """Return what the digest of this exact model may be while its replicas have ``slots_now``, None for unknown.

    Versions without options do not count the slots.
    """
    found = {described.digest()}
    if described.slots_per_replica == slots_now:
        found.add(replace(described, slots_per_replica=1).digest())
    return found


def _with_what_was_read(revision: ModelRevision, described: Description) -> ModelRevision:
    """Store the digest of the files, which is in the digest of the revision, and what they say, in a row without."""
    stored = {"weights_digest": described.weights_digest, "file_facts": file_facts.to_json(described.file_facts)}
    if missing := [name for name, value in stored.items() if value and not getattr(revision, name)]:
        for name in missing:
            setattr(revision, name, stored[name])
        revision.save(update_fields=missing)
    return revision


def _served(revision: ModelRevision, base: ModelRevision | None, aliases: tuple[str, ...]) -> ServedModel:
    model, runs = revision.model, base or revision
    return ServedModel(
        name=model.name,
        owner_id=TenantId(model.owner_id),
        owner_slug=model.owner.slug,
        public=model.visibility == Model.Visibility.PUBLIC,
        revision_id=RevisionId(revision.id),
        digest=revision.digest if base is None else adapters.digest_on(base.digest, revision.digest),
        context_length_tokens=runs.context_length_tokens,
        created_at=int(model.created_at.timestamp()),
        shared_with=frozenset(map(TenantId, model.shared_with)),
        base="" if base is None else base.model.name,
        engine_name="" if base is None else adapters.engine_name(model.name, revision.digest),
        base_revision_id=None if base is None else RevisionId(base.id),
        aliases=aliases,
        deprecated_at=None if model.deprecated_at is None else int(model.deprecated_at.timestamp()),
        retires_at=None if model.retires_at is None else int(model.retires_at.timestamp()),
        replacement=model.replacement,
        engine_args=tuple(runs.engine_args),
        lora_adapters=engine_options.from_json(runs.options).lora_adapters,
        file_facts=file_facts.from_json(runs.file_facts),
    )
