"""Which replicas load which LoRA adapters, and when the next revision of one takes over."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now

from catalogue import registry
from catalogue.models import Model, ModelRevision
from tenants.audit import SYSTEM
from workers.models import AdapterLoad, Replica, Weights
from workers.serving import endpoints

_State = AdapterLoad.State
#: Replicas that have a process, or will have one.
_ENDED = (Replica.State.STOPPED, Replica.State.FAILED)
#: An adapter that is not wanted any more stays for so long: gateways may send requests to it until they have read so.
UNLOAD_AFTER = dt.timedelta(seconds=10)
_LOADED_NOW = Q(state=_State.LOADED, generation=F("replica__generation"))


def renew() -> set[UUID]:
    """Create the rows that are missing, mark and delete those that are not wanted; return the nodes with new work.

    Every replica of a base gets every adapter's active revision, and the next one beside it. Call it inside reconcile's
    transaction, and :func:`promote` at its end.
    """
    revisions = wanted()
    if not revisions and not AdapterLoad.objects.exists():
        return set()
    AdapterLoad.objects.filter(Q(replica__state__in=_ENDED) | Q(state=_State.UNLOADED)).delete()
    replicas = list(
        takers()
        .filter(revision__model_id__in=revisions)
        .exclude(state__in=_ENDED)
        .values_list("id", "node_id", "revision__model_id")
        .order_by("id")
    )
    due = {(replica_id, revision_id) for replica_id, _, base_id in replicas for revision_id in revisions[base_id]}
    rows = list(AdapterLoad.objects.values_list("id", "replica_id", "revision_id", "unwanted_since"))
    present = {(replica_id, revision_id) for _, replica_id, revision_id, _ in rows}
    unwanted = [id_ for id_, *pair, since in rows if tuple(pair) not in due and since is None]
    again = [id_ for id_, *pair, since in rows if tuple(pair) in due and since is not None]
    AdapterLoad.objects.filter(id__in=unwanted).update(unwanted_since=Now())
    AdapterLoad.objects.filter(id__in=again).update(unwanted_since=None)
    missing = sorted(due - present)
    AdapterLoad.objects.bulk_create(
        AdapterLoad(replica_id=replica_id, revision_id=revision_id) for replica_id, revision_id in missing
    )
    fresh = {replica_id for replica_id, _ in missing}
    return {node_id for replica_id, node_id, _ in replicas if replica_id in fresh and node_id is not None}


def wanted() -> Mapping[UUID, set[UUID]]:
    """Return the revisions that replicas shall have, by the id of their base."""
    found: dict[UUID, set[UUID]] = defaultdict(set)
    live = Q(model__archived_at=None, model__base__archived_at=None) & ~Q(model__base=None)
    active = ModelRevision.objects.filter(live, superseded_at=None)
    for revision_id, base_id in active.values_list("id", "model__base_id"):
        assert base_id is not None, "filtered out"
        found[base_id].add(revision_id)
    waiting = Model.objects.filter(archived_at=None, base__archived_at=None).exclude(next_revision=None)
    for revision_id, base_id in waiting.values_list("next_revision_id", "base_id"):
        assert revision_id is not None and base_id is not None, "filtered out"
        found[base_id].add(revision_id)
    return found


def promote() -> None:
    """Activate each next revision that every ready replica of its base has loaded.

    The earlier one is not wanted any more from then on. Last in the transaction: it raises the policy epoch.
    """
    pending = Model.objects.filter(archived_at=None).exclude(next_revision=None)
    for row in pending.select_related("next_revision__model__owner").order_by("id"):
        revision = row.next_revision
        assert revision is not None and row.base_id is not None, "only adapters have one"
        ready = takers().filter(state=Replica.State.READY, revision__model_id=row.base_id)
        if ready.exclude(id__in=_having(revision)).exists():
            continue
        locked = Model.objects.select_for_update().get(id=row.id)
        if locked.next_revision_id != revision.id:
            continue
        locked.next_revision = None
        locked.save(update_fields=["next_revision"])
        registry.activate(SYSTEM, revision)
        endpoints.announce()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """An adapter that a ready replica does not have, and others serve. ``error``: why it does not come."""

    name: str
    error: str = ""


def lacking() -> Mapping[UUID, Sequence[Lacking]]:
    """Return what ready replicas lack of the adapters that others serve, by replica.

    Until such a replica has them it takes the place of none that does. An adapter has an ``error`` once its engine has
    refused it, or its node has not got its files, AdapterLoad.ATTEMPTS times.
    """
    fetch = Weights.objects.filter(
        node=OuterRef("replica__node"),
        revision=OuterRef("revision"),
        state=Weights.State.FAILED,
        attempts__gte=AdapterLoad.ATTEMPTS,
    )
    rows = (
        AdapterLoad.objects.filter(unwanted_since=None, revision__superseded_at=None)
        .filter(replica__state=Replica.State.READY, replica__desired_state=Replica.Desired.RUNNING)
        .annotate(
            has_it=ExpressionWrapper(_LOADED_NOW, output_field=BooleanField()),
            not_fetched=Subquery(fetch.values("error")[:1]),
        )
        .select_related("revision__model")
        .order_by("replica_id", "revision__model__name")
    )
    found = list(rows)
    served = {row.revision_id for row in found if row.has_it}
    lacked: dict[UUID, list[Lacking]] = defaultdict(list)
    for row in found:
        if row.revision_id in served and not row.has_it:
            refused = row.error if row.state == _State.FAILED and row.attempts >= AdapterLoad.ATTEMPTS else ""
            error = refused or row.not_fetched or ""
            lacked[row.replica_id].append(Lacking(name=row.revision.model.name, error=error))
    return lacked


def takers() -> QuerySet[Replica]:
    """Return the replicas that stay and whose engines were started with LoRA."""
    return Replica.objects.filter(desired_state=Replica.Desired.RUNNING, revision__options__lora_adapters__gt=0)


def _having(revision: ModelRevision) -> Collection[UUID]:
    """Return the replicas whose engine of now has loaded the revision."""
    loaded = AdapterLoad.objects.filter(revision=revision, state=_State.LOADED, generation=F("replica__generation"))
    return list(loaded.values_list("replica_id", flat=True))
