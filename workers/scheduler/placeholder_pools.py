"""Keep the number of placeholders that every pool wants: create missing ones, evict surplus ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from uuid import UUID

from django.db.models import Case, Count, F, Max, Min, Q, When
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from workers.engines.driver import named_version
from workers.models import Deployment, DeploymentPool, Level, Node, Placeholder, Pool, Replica, Slot, SlotLease
from workers.scheduler.placeholder_policy import NodePlaceholders, plan
from workers.scheduler.slots import slot_leases
from workers.serving import pool_requirements, promotion, promotion_obstacles

_State = Placeholder.State
#: States in which a placeholder has a slot.
LEASED_STATES = (_State.REQUESTED, _State.WARMING, _State.WARM)
_STARTING = (Replica.State.REQUESTED, Replica.State.RESERVED, Replica.State.STARTING, Replica.State.WARMING)


def fill() -> list[UUID]:
    """Bring every live node's placeholders to what its pool wants; return the nodes concerned.

    Call it inside a transaction, after replicas were placed, because replicas have precedence.
    """
    rank = _ranks()
    nodes = list(Node.objects.filter(lease_expires_at__gt=Now(), cordoned=False).select_related("pool"))
    nodes.sort(key=lambda node: (rank[node.pool_id], node.name))
    changed = _evict_useless(nodes)
    steps = plan(_node_placeholders(nodes), _next_pools(rank))
    by_id = {node.id: node for node in nodes}
    made = [node_id for node_id in steps.make if _make(by_id[node_id])]
    poorer = Placeholder.objects.filter(id__in=steps.evict).order_by().values_list("node_id", flat=True).distinct()
    slot_leases.evict(steps.evict, "its pool has more placeholders than it wants")
    return [*made, *poorer, *changed]


def evict_unfit(deployment: Deployment, revision: ModelRevision, slots_per_replica: int) -> None:
    """Evict the deployment's placeholders if they cannot become the revision; the pool makes others."""
    held = Placeholder.objects.filter(deployment=deployment, state__in=LEASED_STATES)
    if promotion.needed(deployment.revision) == promotion.needed(revision):
        held = held.filter(node__pool__kind="gpu").exclude(slot_count=slots_per_replica)
    why = f"{deployment.name} now serves a model it cannot become"
    slot_leases.evict(list(held.values_list("id", flat=True)), why)


def _evict_useless(nodes: Sequence[Node]) -> set[UUID]:
    """Evict those that become no replica of their deployment on their node; return the nodes that had them.

    They have other slots than a replica needs, left by a version of Hearth that gave each one GPU, or what `hearth
    gpu-check` found forbids their promotion. The pool counts them, so they would keep others away.
    """
    held = Placeholder.objects.filter(
        state__in=LEASED_STATES, node__in=nodes, node__pool__placeholder_level=Level.H2, deployment__isnull=False
    ).select_related("deployment__revision", "node__pool")
    found: dict[str, list[Placeholder]] = defaultdict(list)
    for row in held:
        if row.deployment and (why := _useless(row, row.deployment)):
            found[why].append(row)
    for why, rows in found.items():
        slot_leases.evict([row.id for row in rows], why)
    return {row.node_id for rows in found.values() for row in rows}


def _useless(row: Placeholder, deployment: Deployment) -> str:
    slots = _slots(deployment, row.node.pool)
    if row.slot_count != slots:
        return "a replica of its deployment needs another number of slots"
    if row.node.engines_epoch != row.node.epoch:  # its agent has just come back, and may adopt what is warm
        return ""
    return promotion_obstacles.obstacle(row.node, deployment.revision, slots)


def _ranks() -> dict[UUID, int]:
    """Return every pool's position by priority; with equal priority an overflow pool follows the pool it relieves."""
    pools = Pool.objects.annotate(position=Max("deploymentpool__sequence"))
    ordered = pools.order_by("priority", F("position").asc(nulls_last=True), "name").values_list("id", flat=True)
    return {pool_id: place for place, pool_id in enumerate(ordered)}


def _next_pools(rank: Mapping[UUID, int]) -> dict[UUID, UUID]:
    """Return the pool that each pool's deployments overflow to, where placeholders serve the same deployments.

    Only pools of a lower rank count, so that nothing is passed on in a circle; if there are several, the first.
    """
    links = DeploymentPool.objects.filter(deployment__archived_at=None)
    ordered = links.order_by("deployment", "sequence").values_list("deployment_id", "pool_id")
    steps = [(before, after) for (one, before), (other, after) in pairwise(ordered) if one == other]
    found: dict[UUID, UUID] = {}
    for before, after in sorted(steps, key=lambda step: rank[step[1]]):
        if rank[before] < rank[after]:
            found.setdefault(before, after)
    return found


def _node_placeholders(nodes: Sequence[Node]) -> list[NodePlaceholders]:
    placeholder_ids: dict[UUID, list[UUID]] = defaultdict(list)
    rows = Placeholder.objects.filter(state__in=LEASED_STATES, node__in=nodes)
    best_first = sorted(rows, key=lambda row: (row.level != Level.H2, row.state != _State.WARM, row.id))
    for row in best_first:
        placeholder_ids[row.node_id].append(row.id)
    leased_slots = SlotLease.objects.filter(released_at=None).values("slot")
    slots = Slot.objects.filter(health=Slot.Health.OK, node__in=nodes).exclude(id__in=leased_slots)
    free = Counter(slots.values_list("node_id", flat=True))
    sizes = _sizes({node.pool_id for node in nodes if node.pool.kind == "gpu"})
    starting = set(Replica.objects.filter(state__in=_STARTING, node__in=nodes).values_list("node_id", flat=True))
    warming = set(rows.exclude(state=_State.WARM).values_list("node_id", flat=True))
    return [
        NodePlaceholders(
            node_id=node.id,
            name=node.name,
            pool_id=node.pool_id,
            wanted=node.pool.placeholders_per_node,
            free=free[node.id] // sizes.get(node.pool_id, 1),
            placeholder_ids=tuple(placeholder_ids[node.id]),
            may_make=node.id not in starting | warming,
        )
        for node in nodes
    ]


def _sizes(pool_ids: Collection[UUID]) -> dict[UUID, int]:
    """Return how many slots a placeholder takes in each of these pools of GPUs, at least."""
    links = DeploymentPool.objects.filter(
        pool__in=pool_ids, pool__placeholder_level=Level.H2, deployment__archived_at=None
    )
    found = links.order_by().values_list("pool_id").annotate(least=Min("deployment__slots_per_replica"))
    return dict(found)


def _make(node: Node) -> bool:
    """Create a placeholder on the node for the pool's deployment that has the fewest.

    False without free slots for it, or without a deployment whose engine a zygote could import.
    """
    deployment = _neediest(node)
    if deployment is None and node.pool.placeholder_level == Level.H2:
        return False
    slots = 1 if deployment is None else _slots(deployment, node.pool)
    row = Placeholder.objects.create(
        node=node,
        deployment=deployment,
        engine=deployment.revision.engine if deployment else "",
        slot_count=slots,
        target_level=node.pool.placeholder_level,
        reason="the pool keeps it warm",
    )
    fence = slot_leases.lease_for_placeholder(row.id, node.id, slots)
    if fence is None:
        row.delete()
        return False
    Placeholder.objects.filter(id=row.id).update(fence=fence)
    return True


def _neediest(node: Node) -> Deployment | None:
    """Return the deployment of the node's pool with the fewest placeholders, of those that may have replicas there.

    A deployment whose maximum is zero is chosen only if there is no other.
    """
    links = DeploymentPool.objects.filter(pool_id=node.pool_id, deployment__archived_at=None).select_related("pool")
    count = Count("deployment__placeholders", filter=Q(deployment__placeholders__state__in=LEASED_STATES))
    off = Case(When(deployment__max_replicas=0, then=True), default=False)
    ranked = links.select_related("deployment__revision").annotate(placeholder_count=count, off=off)
    ordered = ranked.order_by("off", "placeholder_count", "sequence", "deployment_id")
    taken = SlotLease.objects.filter(released_at=None).values("slot")
    room = Slot.objects.filter(health=Slot.Health.OK, node=node).exclude(id__in=taken).count()
    for link in ordered:
        unmet = pool_requirements.unmet(pool_requirements.read(link.deployment.requires), link.pool)
        slots = _slots(link.deployment, link.pool)
        promotes = link.pool.placeholder_level != Level.H2 or not promotion_obstacles.obstacle(
            node, link.deployment.revision, slots
        )
        if not unmet and slots <= room and promotes and _has_engine(node, link.deployment.revision):
            return link.deployment
    return None


def _slots(deployment: Deployment, pool: Pool) -> int:
    """Return how many slots a placeholder for the deployment has in the pool."""
    if pool.placeholder_level != Level.H2:
        return 1
    return promotion.slots_needed(deployment.slots_per_replica, pool.kind)


def _has_engine(node: Node, revision: ModelRevision) -> bool:
    version = named_version(revision.engine, revision.engine_version)
    return not version or version in node.known_engines
