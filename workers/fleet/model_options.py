"""Change the typed options of what a deployment serves: its slots, its context, and those of its engine.

What it serves stays, under a new revision: each option is part of the digest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import msgspec
from django.db.models import Count, Max

from catalogue import engine_options, registry
from catalogue.engine_options import EngineOptions
from catalogue.registry import Description
from tenants.audit import Actor
from workers.engines.options import own_arguments
from workers.errors import BadCount, Refused
from workers.fleet import deployments, engine_versions, rollouts
from workers.models import Deployment, Node, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange:
    """New values of options; None leaves one as it is. ``context_tokens`` 0: the model's own."""

    slots_per_replica: int | None = None
    context_tokens: int | None = None
    kv_dtype: str | None = None
    quantization: str | None = None
    host_memory_gib: int | None = None
    pipeline_parallel: int | None = None
    lora_adapters: int | None = None
    lora_rank: int | None = None
    #: In full, or its beginning; see ``engine_versions.resolve``.
    engine_version: str | None = None
    #: All that somebody chose; those that the model and its task need are added. See ``model_sources.checks``.
    engine_args: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        """Return whether it changes anything."""
        return any(getattr(self, each.name) is not None for each in fields(self))

    @property
    def is_of_engine(self) -> bool:
        """Return whether an option of the engine itself is given, which its parser has to accept."""
        of_program = self.engine_version, self.engine_args
        return of_program != (None, None) or any(getattr(self, name) is not None for name in _OF_ENGINE)

    def of_engine(self, present: EngineOptions) -> EngineOptions:
        """Return the present options of an engine with the new values."""
        new = {name: value for name in _OF_ENGINE if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(present, **new)


_OF_ENGINE = EngineOptions.__struct_fields__
NO_CHANGE = OptionChange()


def changed(found: Deployment, change: OptionChange, *, weights_digest: str = "") -> Description:
    """Return what the deployment serves after the change. ``weights_digest``: see ``registry.described``.

    Raises BadName, BadCount; Refused if a raw argument says the same, or the files of its folder are not known.
    """
    present = registry.described(found.revision, found.slots_per_replica, weights_digest=weights_digest)
    model_name = found.revision.model.name
    if present is None:
        why = f"the files in {found.revision.source} have changed since it was deployed, or were not recorded then"
        raise Refused("model", model_name, why, f"deploy it again: `hearth deploy {model_name} --source …`")
    raw = present.engine_args if change.engine_args is None else change.engine_args
    for option in _OF_ENGINE:
        if getattr(change, option) is not None and (given := own_arguments.of_option(option, raw)):
            instead = f"deploy it again with --source, without {given} in --engine-args"
            raise Refused("model", model_name, f"its engine arguments have {given}", instead)
    slots = present.slots_per_replica if change.slots_per_replica is None else change.slots_per_replica
    deployments.check_slots(slots)
    context = present.context_length_tokens if change.context_tokens is None else change.context_tokens
    return replace(
        present,
        context_length_tokens=context,
        options=engine_options.check(change.of_engine(present.options), slots=slots),
        slots_per_replica=slots,
        engine_version=present.engine_version
        if change.engine_version is None
        else engine_versions.resolve(present.engine, change.engine_version),
    )


def check_nodes(slots: int, pool: Pool) -> None:
    """Raise BadCount if no node of the pool has as many slots as one replica takes, quarantined ones included."""
    most = most_slots(pool)
    if most is not None and most < slots:
        raise BadCount(slots, f"1 to {most}, as many as a node of pool {pool.name} has", "slots for each replica")


def most_slots(pool: Pool) -> int | None:
    """Return the slots of the pool's largest node, quarantined ones included; None if it has none."""
    counted = Node.objects.filter(pool=pool, removed_at=None).annotate(slot_count=Count("slots"))
    found: int | None = counted.aggregate(most=Max("slot_count"))["most"]
    return found or None


def apply(actor: Actor, found: Deployment, wanted: Description) -> Deployment:
    """Let the deployment serve this, in the pools that it has; idempotent.

    Call it in a transaction, with the locks of prices and of the reconciler. A rollout replaces its replicas. Raises
    NotFound, BadCount; Refused if there is no room for a new replica, or it serves something else than ``found``, of
    which ``wanted`` was made: that would undo another change.
    """
    row = Deployment.objects.select_related("revision__model__owner").filter(id=found.id).first()
    now = None if row is None else rollouts.as_wanted(row)
    if row is None or now is None or _served(now) != _served(found):
        name = found.revision.model.name
        raise Refused("model", name, "it was changed while the new options were checked", "try again")
    revision = now.revision
    if wanted != registry.described(revision, found.slots_per_replica, weights_digest=wanted.weights_digest):
        revision = registry.record(actor, revision.model.owner, wanted, slots_now=row.slots_per_replica)
    return deployments.redeploy(
        actor,
        found.name,
        revision=revision,
        pools=pools_of(found),
        slots_per_replica=wanted.slots_per_replica,
    )


def pools_of(found: Deployment) -> list[Pool]:
    """Return the pools of a deployment, in their order."""
    return list(Pool.objects.filter(deploymentpool__deployment=found).order_by("deploymentpool__sequence"))


def _served(deployment: Deployment) -> tuple[object, ...]:
    return deployment.revision_id, deployment.slots_per_replica, deployment.revision.model.name
