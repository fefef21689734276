"""Which LoRA adapters are loaded where, in numbers and in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import F, Q

from catalogue import engine_options
from catalogue.models import Model, ModelRevision
from tenants.models import Tenant
from workers.engines.arguments import commit_of
from workers.fleet import rollouts
from workers.fleet.lookup import short
from workers.fleet.status import weights
from workers.models import AdapterLoad, Deployment, Replica
from workers.scheduler.adapters import takers

_State = AdapterLoad.State


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOnReplica:
    """One revision of an adapter on one ready replica of its base. ``error`` says why the last attempt failed."""

    replica: str
    node: str
    digest: str
    is_loaded: bool
    error: str

    @property
    def words(self) -> str:
        """Return whether it is loaded there, or why not."""
        if self.is_loaded:
            return f"loaded on {self.replica}"
        return (
            f"cannot be loaded on {self.replica}: {self.error}" if self.error else f"not loaded yet on {self.replica}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterStatus:
    """An adapter: how many ready replicas of its base there are, and where the revision that they shall have is."""

    name: str
    owner: str
    base: str
    source: str
    #: The commit of a Hugging Face id; empty for a folder.
    revision: str
    digest: str
    ready: int
    replicas: Sequence[AdapterOnReplica]
    #: Whether that revision is still to take over from an earlier one, which serves until every replica has it.
    is_coming: bool
    #: Whether the engines of its base are started with LoRA, or will be.
    base_takes_adapters: bool
    #: Why nodes do not have its files yet.
    fetches: Sequence[str] = ()

    @property
    def loaded(self) -> int:
        """Return on how many replicas it is loaded."""
        return sum(each.is_loaded for each in self.replicas)

    @property
    def is_refused(self) -> bool:
        """Return whether a replica cannot load it, or does not get its files."""
        problems = any(each.error and not each.is_loaded for each in self.replicas)
        return problems or not self.base_takes_adapters or bool(self.fetches)

    @property
    def words(self) -> str:
        """Return how far it is, and each reason why it is no further."""
        found = f"loaded on {self.loaded} of {self.ready} ready replicas of {self.base}"
        if not self.base_takes_adapters:
            return (
                f"cannot be loaded: the engines of {self.base} are started without LoRA. "
                f"`hearth deploy {self.base} --lora-adapters 4` turns it on"
            )
        if self.is_coming:
            found += "; the earlier revision serves until all have it"
        problems = [each.words for each in self.replicas if each.error and not each.is_loaded]
        return "; ".join([found, *self.fetches, *problems])


def by_model(models: Iterable[Model]) -> Mapping[UUID, AdapterStatus]:
    """Return the status of the adapters among these models, in a few queries."""
    rows = [each for each in models if each.base_id is not None]
    if not rows:
        return {}
    bases = dict(Model.objects.filter(id__in={each.base_id for each in rows}).values_list("id", "name"))
    ready: dict[UUID, int] = defaultdict(int)
    serving = takers().filter(state=Replica.State.READY)
    for base_id in serving.filter(revision__model__in=bases).values_list("revision__model_id", flat=True):
        ready[base_id] += 1
    loads: dict[UUID, list[AdapterLoad]] = defaultdict(list)
    for load in (
        AdapterLoad.objects.filter(revision__model__in=rows, unwanted_since=None)
        .filter(replica__state=Replica.State.READY)
        .select_related("revision", "replica__node", "replica__deployment")
        .annotate(generation_now=F("replica__generation"))
        .order_by("replica_id")
    ):
        loads[load.revision.model_id].append(load)
    wanted = {each.model_id: each for each in _wanted(rows)}
    deployed = Deployment.objects.filter(revision__model__in=bases, archived_at=None).select_related("revision")
    take = {
        each.revision.model_id
        for each in rollouts.all_as_wanted(deployed)
        if engine_options.from_json(each.revision.options).lora_adapters
    }
    files = weights.by_revision()
    owners = dict(Tenant.objects.filter(id__in={each.owner_id for each in rows}).values_list("id", "slug"))
    found = {}
    for row in rows:
        assert row.base_id is not None, "filtered"
        revision = wanted[row.id]
        found[row.id] = AdapterStatus(
            name=row.name,
            owner=owners[row.owner_id],
            base=bases[row.base_id],
            source=revision.source,
            revision=commit_of(revision.engine_args),
            digest=revision.digest,
            ready=ready[row.base_id],
            replicas=tuple(_on_replica(each) for each in loads[row.id] if each.revision_id == revision.id),
            base_takes_adapters=row.base_id in take,
            is_coming=row.next_revision_id is not None,
            fetches=tuple(each.words for each in files.get(revision.id, ()) if each.error and not each.is_ready),
        )
    return found


def status(model: Model) -> AdapterStatus:
    """Return how far an adapter is now."""
    fresh = Model.objects.get(id=model.id)
    return by_model([fresh])[model.id]


def words(model: Model) -> str:
    """Return how far an adapter is, in words."""
    return status(model).words


def _wanted(rows: Sequence[Model]) -> list[ModelRevision]:
    """Return the revision that replicas shall have of each adapter: the next one, else the active one."""
    coming = [row.next_revision_id for row in rows if row.next_revision_id is not None]
    settled = [row.id for row in rows if row.next_revision_id is None]
    return list(ModelRevision.objects.filter(Q(id__in=coming) | Q(model__in=settled, superseded_at=None)))


def _on_replica(load: AdapterLoad) -> AdapterOnReplica:
    replica = load.replica
    return AdapterOnReplica(
        replica=f"{replica.deployment.name}/{short(replica.id)}",
        node=replica.node.name if replica.node is not None else "",
        digest=load.revision.digest,
        is_loaded=load.state == _State.LOADED and load.generation == replica.generation,
        error=load.error,
    )
