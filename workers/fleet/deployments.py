"""The desired state: pools, nodes, deployments and their replicas. The reconciler brings it about."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from catalogue import registry
from catalogue.models import Model, ModelRevision
from tenants import audit
from tenants.audit import Actor
from workers.errors import BadCount, Conflict, NotFound
from workers.fleet import reserved_capacity, rollouts
from workers.models import Deployment, DeploymentPool, Node, Placeholder, Pool, Replica
from workers.scheduler import placeholder_pools, reconciler
from workers.scheduler.rollout import deployment_pools
from workers.scheduler.slots import slot_leases
from workers.serving import endpoints

MAX_REPLICAS = 1000
#: GPUs of the largest machine.
MAX_SLOTS_PER_REPLICA = 16
#: A day.
MAX_DRAIN_SECONDS = 86_400
#: Time for requests to finish when everything is shut down.
SHUTDOWN_DRAIN_SECONDS = 20


@transaction.atomic
def ensure_pool(actor: Actor, *, name: str, kind: str, region: str = "local", priority: int = 100) -> Pool:
    """Return the pool of that name, created if it is missing. Raises Conflict if it is of another kind."""
    pool, created = Pool.objects.get_or_create(
        name=name, defaults={"kind": kind, "region": region, "priority": priority}
    )
    if pool.kind != kind:
        raise Conflict("pool", name, "kind", pool.kind, kind)
    if created:
        audit.record(actor, "pool.created", ("pool", pool.id), after={"name": name, "kind": kind, "region": region})
    return pool


@transaction.atomic
def ensure_node(actor: Actor, *, pool: Pool, name: str) -> Node:
    """Return the node of that name, added to the pool if it is missing. Raises Conflict if another pool has it."""
    node, created = Node.objects.select_related("pool").get_or_create(name=name, defaults={"pool": pool})
    if node.pool_id != pool.id:
        raise Conflict("node", name, "pool", node.pool.name, pool.name)
    if created:
        audit.record(actor, "node.added", ("node", node.id), after={"name": name, "pool": pool.name})
    return node


@transaction.atomic
def create(
    actor: Actor,
    *,
    name: str,
    revision: ModelRevision,
    pools: Sequence[Pool],
    replicas: int,
    slots_per_replica: int = 1,
) -> Deployment:
    """Create a deployment that fills ``pools`` in the order given. Raises Conflict, BadCount."""
    _check_bounds(replicas, replicas)
    check_slots(slots_per_replica)
    existing = Deployment.objects.filter(name=name).first()
    if existing is not None:
        raise Conflict("deployment", name, "id", str(existing.id), "a new one")
    deployment = Deployment.objects.create(
        name=name,
        revision=revision,
        desired_replicas=replicas,
        min_replicas=replicas,
        max_replicas=replicas,
        slots_per_replica=slots_per_replica,
    )
    _link(deployment, pools)
    after = {
        "name": name,
        "revision": str(revision.id),
        "replicas": replicas,
        "pools": [pool.name for pool in pools],
        "slots_per_replica": slots_per_replica,
    }
    audit.record(actor, "deployment.created", ("deployment", deployment.id), after=after)
    registry.activate(actor, revision)
    return deployment


@transaction.atomic
def redeploy(
    actor: Actor,
    deployment: str,
    *,
    revision: ModelRevision,
    pools: Sequence[Pool],
    slots_per_replica: int | None = None,
) -> Deployment:
    """Move a deployment to another revision, other pools, or replicas of another size; idempotent.

    ``slots_per_replica``: None leaves it. A rollout replaces its replicas, or all at once if none of them serves; those
    outside of its pools are drained. The revision is active once the rollout is done. Raises NotFound, BadCount;
    Refused if there is no room for a new replica.
    """
    if slots_per_replica is not None:
        check_slots(slots_per_replica)
    reconciler.lock(wait=True)
    rows = Deployment.objects.select_for_update(no_key=True, of=("self",)).select_related("revision__model")
    row = rows.filter(name=deployment, archived_at=None).first()
    if row is None:
        raise NotFound("deployment", deployment)
    links = DeploymentPool.objects.filter(deployment=row).order_by("sequence")
    wanted = rollouts.as_wanted(row)
    before = {
        "revision": str(wanted.revision_id),
        "pools": [link.pool.name for link in links.select_related("pool")],
        "slots_per_replica": wanted.slots_per_replica,
    }
    slots = wanted.slots_per_replica if slots_per_replica is None else slots_per_replica
    after = {"revision": str(revision.id), "pools": [pool.name for pool in pools], "slots_per_replica": slots}
    if before == after:
        return row
    earlier_pools = deployment_pools.of(row)
    moved = deployment_pools.change(row, [pool.id for pool in pools])
    if (wanted.revision_id, wanted.slots_per_replica) != (revision.id, slots):
        rollouts.require_room_for_adapters(revision)
        rollouts.begin(actor, row, revision, slots, earlier_pools=earlier_pools)
    elif moved:
        rollouts.keep_pools(row)
    audit.record(actor, "deployment.redeployed", ("deployment", row.id), before=before, after=after)
    return row


@transaction.atomic
def scale(actor: Actor, deployment: str, replicas: int, maximum: int | None = None) -> Deployment:
    """Set how many replicas a deployment has: a fixed number, or a range in which scaling decides.

    The same numbers twice change nothing. Nodes on which the deployment failed are tried again. Waits for a running
    tick. Raises NotFound, BadCount; Refused for a maximum below what tenants have reserved.
    """
    most = replicas if maximum is None else maximum
    _check_bounds(replicas, most)
    reconciler.lock(wait=True)
    row = Deployment.objects.select_for_update(no_key=True).filter(name=deployment, archived_at=None).first()
    if row is None:
        raise NotFound("deployment", deployment)
    reserved_capacity.require_range(row, most, timezone.now())
    before = _bounds(row)
    row.min_replicas, row.max_replicas = replicas, most
    row.desired_replicas = min(max(row.desired_replicas, replicas), most)
    row.save(update_fields=["min_replicas", "desired_replicas", "max_replicas"])
    row.replicas.filter(state=Replica.State.FAILED).update(desired_state=Replica.Desired.STOPPED)
    if before != _bounds(row):
        audit.record(actor, "deployment.scaled", ("deployment", row.id), before=before, after=_bounds(row))
    return row


@transaction.atomic
def set_drain(actor: Actor, deployment: str, seconds: int) -> None:
    """Set how long a draining replica may take to finish its requests; idempotent. Raises NotFound, BadCount."""
    if not 0 <= seconds <= MAX_DRAIN_SECONDS:
        raise BadCount(seconds, f"0 to {MAX_DRAIN_SECONDS}", "seconds to drain")
    row = Deployment.objects.select_for_update(no_key=True).filter(name=deployment, archived_at=None).first()
    if row is None:
        raise NotFound("deployment", deployment)
    before = row.drain_seconds
    if before != seconds:
        Deployment.objects.filter(id=row.id).update(drain_seconds=seconds)
        told = {"drain_seconds": before}, {"drain_seconds": seconds}
        audit.record(actor, "deployment.drain_set", ("deployment", row.id), before=told[0], after=told[1])


@transaction.atomic
def archive(actor: Actor, model: Model) -> int:
    """Archive the deployments of a model, whose replicas drain and stop; return how many were not archived before.

    They keep their bounds for :func:`restore`. Waits for a running tick. Raises Refused while slots are reserved.
    """
    reconciler.lock(wait=True)
    rows = list(_of_model(model).filter(archived_at=None))
    for row in rows:
        reserved_capacity.require_range(row, 0, timezone.now())
        Deployment.objects.filter(id=row.id).update(archived_at=Now())
        rollouts.end_open(actor, row, f"{actor.name} archived the model")
        audit.record(actor, "deployment.archived", ("deployment", row.id), after={"name": row.name})
    replace_replicas(model)
    return len(rows)


@transaction.atomic
def restore(actor: Actor, model: Model) -> int:
    """Run the archived deployments of a model again, within their bounds; return how many those are."""
    reconciler.lock(wait=True)
    rows = list(_of_model(model).exclude(archived_at=None))
    for row in rows:
        Deployment.objects.filter(id=row.id).update(archived_at=None)
        audit.record(actor, "deployment.restored", ("deployment", row.id), after={"name": row.name})
    return len(rows)


def check_slots(slots: int) -> None:
    """Raise BadCount if a replica cannot take this many slots on any machine."""
    if not 1 <= slots <= MAX_SLOTS_PER_REPLICA:
        raise BadCount(slots, f"1 to {MAX_SLOTS_PER_REPLICA}", "slots for each replica")


def replace_replicas(model: Model) -> None:
    """Withdraw every replica of a model: each drains, and the reconciler starts those that are still desired."""
    reconciler.lock(wait=True)
    if reconciler.withdraw(Replica.objects.filter(deployment__revision__model=model)):
        endpoints.announce()


def _of_model(model: Model) -> QuerySet[Deployment]:
    rows = Deployment.objects.filter(revision__model=model).select_for_update(no_key=True, of=("self",))
    return rows.order_by("name")


@transaction.atomic
def stop_all(actor: Actor) -> int:
    """Withdraw every replica, and return how many. Deployments keep their numbers.

    For a shutdown: call it once the control worker has ended, or its next tick starts replacements. Waits for a
    running tick.
    """
    reconciler.lock(wait=True)
    withdrawn = reconciler.withdraw(Replica.objects.all(), drain_seconds=SHUTDOWN_DRAIN_SECONDS)
    held = Placeholder.objects.filter(state__in=placeholder_pools.LEASED_STATES).values_list("id", flat=True)
    slot_leases.evict(list(held), "the fleet is stopped")
    if withdrawn:
        endpoints.announce()
        audit.record(actor, "fleet.stopped", ("fleet", "all"), after={"replicas": withdrawn})
    return withdrawn


def _link(deployment: Deployment, pools: Sequence[Pool]) -> None:
    DeploymentPool.objects.bulk_create(
        [
            DeploymentPool(deployment=deployment, pool=pool, sequence=sequence)
            for sequence, pool in enumerate(pools, start=1)
        ]
    )


def _bounds(row: Deployment) -> dict[str, int]:
    """Return a deployment's size for the audit log: one number, or two if scaling has a range."""
    if row.min_replicas == row.max_replicas:
        return {"replicas": row.min_replicas}
    return {"minimum": row.min_replicas, "maximum": row.max_replicas}


def _check_bounds(minimum: int, maximum: int) -> None:
    if not 0 <= minimum <= MAX_REPLICAS:
        raise BadCount(minimum, f"0 to {MAX_REPLICAS}")
    if not minimum <= maximum <= MAX_REPLICAS:
        raise BadCount(maximum, f"{minimum} to {MAX_REPLICAS}", "replicas at most")
