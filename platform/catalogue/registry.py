"""Register models and revisions, and tell the gateway which a tenant may call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from django.db import transaction
from django.utils import timezone

from catalogue.models import Model, ModelAlias, ModelRevision
from tenants import audit, epoch
from tenants.audit import Actor
from tenants.ids import RevisionId, TenantId
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One callable model with its active revision."""

    name: str
    owner_id: TenantId
    owner_slug: str
    public: bool
    revision_id: RevisionId
    digest: str
    context_length_tokens: int
    #: Unix seconds.
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All served models by name, aliases included."""

    models: Mapping[str, ServedModel]

    def find(self, tenant_id: TenantId, name: str) -> ServedModel | None:
        """Return the model of this name if the tenant sees it; a stranger's private model does not exist."""
        model = self.models.get(name)
        if model is None or not (model.public or model.owner_id == tenant_id):
            return None
        return model

    def visible(self, tenant_id: TenantId) -> list[ServedModel]:
        """Return the tenant's models by their own names, in order of name."""
        seen = {model.name: model for model in self.models.values() if model.public or model.owner_id == tenant_id}
        return [seen[name] for name in sorted(seen)]


@transaction.atomic
def register(
    actor: Actor,
    owner: Tenant,
    *,
    name: str,
    source: str,
    engine: str,
    context_length_tokens: int,
    engine_args: Sequence[str] = (),
    weights_digest: str = "",
    public: bool = False,
) -> ModelRevision:
    """Make this exact model the active revision of its name; the same one again changes nothing.

    ``weights_digest`` identifies the files behind ``source`` (for a folder: a hash of them).
    """
    model, created = Model.objects.get_or_create(
        name=name,
        defaults={"owner": owner, "visibility": Model.Visibility.PUBLIC if public else Model.Visibility.PRIVATE},
    )
    Model.objects.select_for_update().get(id=model.id)
    digest = revision_digest(source, engine, tuple(engine_args), context_length_tokens, weights_digest)
    active = ModelRevision.objects.filter(model=model, superseded_at=None).first()
    if active is not None and active.digest == digest:
        return active
    ModelRevision.objects.filter(model=model, superseded_at=None).update(superseded_at=timezone.now())
    known = ModelRevision.objects.filter(model=model, digest=digest).first()
    if known is not None:
        ModelRevision.objects.filter(id=known.id).update(superseded_at=None)
        revision = known
    else:
        revision = ModelRevision.objects.create(
            model=model,
            source=source,
            engine=engine,
            engine_args=list(engine_args),
            context_length_tokens=context_length_tokens,
            digest=digest,
        )
    audit.record(
        actor,
        "model.registered" if created else "revision.activated",
        ("revision", revision.id),
        tenant=owner,
        after={"model": name, "source": source, "engine": engine, "digest": digest},
    )
    epoch.bump()
    return revision


def revision_digest(
    source: str, engine: str, engine_args: tuple[str, ...], context_length_tokens: int, weights_digest: str
) -> str:
    """Return the SHA-256, in hex, of everything that can change an answer."""
    identity = [source if not weights_digest else "", engine, list(engine_args), context_length_tokens, weights_digest]
    return hashlib.sha256(orjson.dumps(identity)).hexdigest()


def load() -> Catalogue:
    """Read the catalogue from the database."""
    revisions = ModelRevision.objects.select_related("model", "model__owner").filter(
        superseded_at=None, model__archived_at=None
    )
    by_model = {revision.model_id: _served(revision) for revision in revisions}
    models = {served.name: served for served in by_model.values()}
    for alias in ModelAlias.objects.all():
        if alias.model_id in by_model and alias.name not in models:
            models[alias.name] = by_model[alias.model_id]
    return Catalogue(models=models)


def _served(revision: ModelRevision) -> ServedModel:
    model = revision.model
    return ServedModel(
        name=model.name,
        owner_id=TenantId(model.owner_id),
        owner_slug=model.owner.slug,
        public=model.visibility == Model.Visibility.PUBLIC,
        revision_id=RevisionId(revision.id),
        digest=revision.digest,
        context_length_tokens=revision.context_length_tokens,
        created_at=int(model.created_at.timestamp()),
    )
