"""LoRA adapters: models that run in the replicas of another one, their base, and change its answers.

An adapter is named ``base:adapter``. Engines know each revision of it by a name of its own, so that two revisions can
be loaded side by side (decision 19).
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from django.db import transaction

from catalogue.models import Model, ModelRevision
from tenants import audit
from tenants.audit import Actor

#: Ends the name of an adapter in an engine; no model's name contains it.
REVISION_MARK = "@"
_DIGEST_DIGITS = 12


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of an adapter say: its largest rank, the modules that it changes, and its base in training."""

    rank: int
    target_modules: tuple[str, ...] = ()
    trained_on: str = ""


def split(name: str) -> tuple[str, str] | None:
    """Return the base's name and the adapter's own of ``base:adapter``, at the last colon; None for another name."""
    base, colon, own = name.rpartition(":")
    return (base, own) if colon and base and own else None


def engine_name(name: str, digest: str) -> str:
    """Return the name by which engines know a revision of an adapter; ``in_engine`` takes the mark off again."""
    return f"{name}{REVISION_MARK}{digest[:_DIGEST_DIGITS]}"


def digest_on(base_digest: str, adapter_digest: str) -> str:
    """Return the digest of everything that affects the output of an adapter on one revision of its base."""
    return hashlib.sha256(f"{base_digest} {adapter_digest}".encode()).hexdigest()


def to_json(adapter: Adapter) -> dict[str, Any]:
    """Return what a revision stores."""
    found: dict[str, Any] = msgspec.to_builtins(adapter)
    return found


def from_json(stored: dict[str, Any]) -> Adapter:
    """Return the adapter of a revision."""
    return msgspec.convert(stored, Adapter)


@transaction.atomic
def want(actor: Actor, revision: ModelRevision) -> Model:
    """Let replicas load this revision; it is active once all have it. Return the locked adapter. Idempotent."""
    row = Model.objects.select_for_update().get(id=revision.model_id)
    active = ModelRevision.objects.filter(id=revision.id, superseded_at=None).exists()
    wanted = None if active else revision.id
    if row.next_revision_id != wanted:
        before = {"model": row.name, "next_revision": str(row.next_revision_id or "")}
        row.next_revision_id = wanted
        row.save(update_fields=["next_revision"])
        after = {"model": row.name, "next_revision": str(wanted or ""), "digest": revision.digest}
        audit.record(actor, "adapter.wanted", ("model", row.id), tenant=row.owner, before=before, after=after)
    return row


def of(base: Model) -> list[ModelRevision]:
    """Return the newest wanted revision of each adapter of a model that is not archived, by name."""
    rows = Model.objects.filter(base=base, archived_at=None).select_related("next_revision").order_by("name")
    active = {
        each.model_id: each
        for each in ModelRevision.objects.filter(model__in=rows, superseded_at=None).select_related("model")
    }
    wanted = (row.next_revision or active.get(row.id) for row in rows)
    return [each for each in wanted if each is not None]
