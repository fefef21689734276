"""Bring the replicas of each deployment to the desired number, and the placeholders of each pool.

Level-triggered: every tick reads the whole desired and observed state and changes what differs, so a lost, late or
repeated tick does no harm. The work is one short transaction under an advisory lock.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, FilteredRelation, Func, Q, QuerySet
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from workers.engines.arguments import is_fetched
from workers.engines.driver import import_class, named_version
from workers.models import Deployment, Level, Node, Placeholder, Replica, ReplicaEvent, Rollout, Slot
from workers.scheduler import adapters, failover, placeholder_pools, weights
from workers.scheduler.database_uptime import DatabaseUptime
from workers.scheduler.plan import plan
from workers.scheduler.rollout import canaries, rollouts
from workers.scheduler.rollout import steps as rollout_steps
from workers.scheduler.rollout.rollouts import OpenRollout
from workers.scheduler.scaling import autoscaler
from workers.scheduler.slots import slot_leases, slot_waits
from workers.scheduler.slots.placement import (
    DeploymentView,
    FreeSlots,
    NodeView,
    ReplicaView,
    RolloutView,
    Steps,
    StopReason,
    WeightsState,
)
from workers.serving import endpoints, pool_requirements, promotion

#: Longest pause between two statements of a reconciling transaction. The database then ends the transaction, so a
#: process that is suspended in one, or whose machine has failed, stops the fleet for no longer than this.
LONGEST_PAUSE_MS = 30_000
LOCK_KEY = 0x48_65_61_72_74_68_01  # "Hearth", tick
#: An agent renews its node's lease every second; a node whose agent was silent for this long has lost its replicas.
LEASE = dt.timedelta(seconds=15)
#: How long the database must have been up, and have answered this process without a pause, before a lease counts as
#: expired: while the database was down or frozen, no agent could renew its lease.
DATABASE_GRACE = LEASE
#: How long a node where a deployment failed to start is not offered to it again.
FAILED_REST = dt.timedelta(minutes=10)
#: After this many crashed replicas were replaced within FAILED_REST, the next one restarts where it is, with backoff,
#: instead of using up another placeholder.
MOST_REVIVALS = 3

_State = Replica.State
_Kind = Literal["earlier", "new", "stray"]
#: What replicas lack of the adapters that others serve.
Lacked = Mapping[UUID, Sequence[adapters.Lacking]]
#: States in which the replica has no process and gets none.
ENDED = (_State.STOPPED, _State.FAILED, _State.LOST)
#: States and target levels of placeholders whose process will be able to become a replica.
_WARMING = {(Placeholder.State.REQUESTED, Level.H2), (Placeholder.State.WARMING, Level.H2)}
_REASONS: dict[StopReason, str] = {
    "surplus": "more replicas than desired",
    "replaced": "replaced elsewhere",
    "settled": "its node may be tried again",
    "drained": "an operator drained it",
    "crashed": "it crashed, and a warm placeholder takes over",
    "superseded": "a rollout replaces it",
    "undone": "its rollout is undone",
}

_database_uptime = DatabaseUptime()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one tick did. ``nodes`` are the names of the nodes whose agents have new work."""

    placed: int
    stopped: int
    lost: int
    placeholders: int
    nodes: tuple[str, ...]


@transaction.atomic
def tick() -> Outcome | None:
    """Reconcile once; return None if another process is reconciling. Idempotent."""
    locked = lock(wait=False)
    uptime = _database_uptime.observe()
    if not locked:
        return None
    lost = _mark_lost() if uptime >= DATABASE_GRACE else 0
    autoscaler.decide_all()
    nodes = _nodes()
    opened = rollouts.open_rollouts()
    fetched, fetching = weights.renew(node.id for node in nodes)
    lacking = adapters.lacking()
    steps = plan(_deployments(fetched, opened, failover.works_again(), lacking), nodes)
    failover.record(steps, nodes)
    _note_waits(steps)
    placed = _place(steps, opened)
    filled = placeholder_pools.fill()
    touched = placed | _stop(steps) | set(filled) | fetching | adapters.renew()
    names = tuple(Node.objects.filter(id__in=touched).order_by("name").values_list("name", flat=True))
    rollouts.note_waits(opened.values(), steps.waits_for)
    canaries.start_due(lacking)
    rollouts.finish(opened.values(), steps.finished)  # these two last, because they raise the policy epoch
    adapters.promote()
    return Outcome(
        placed=len(steps.place) + len(steps.roll),
        stopped=len(steps.stop),
        lost=lost,
        placeholders=len(filled),
        nodes=names,
    )


def lock(*, wait: bool) -> bool:
    """Take the lock of reconcile until the transaction ends; False if it is taken and ``wait`` is not set."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [str(LONGEST_PAUSE_MS)])
        if wait:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_KEY])
            return True
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK_KEY])
        return bool(cursor.fetchone()[0])


def _mark_lost() -> int:
    """Mark the replicas and placeholders of nodes whose lease has expired as lost; return how many replicas those were.

    Leases expire by the database's clock, but not in the database's first seconds, when all leases have expired though
    all engines are well. Leases of slots stay: a process that lives is used again when the node is back.
    """
    silent = Node.objects.alias(
        database_up_since=Func(function="pg_postmaster_start_time", output_field=DateTimeField())
    ).filter(lease_expires_at__lt=Now(), database_up_since__lt=Now() - DATABASE_GRACE)
    rows = list(
        Replica.objects.exclude(state__in=ENDED).filter(node__in=silent).select_for_update(of=("self",)).order_by("id")
    )
    for row in rows:
        ReplicaEvent.objects.create(
            replica=row, from_state=row.state, to_state=_State.LOST, reason="the node's lease expired"
        )
    Replica.objects.filter(id__in=[row.id for row in rows]).update(state=_State.LOST, state_since=Now())
    Placeholder.objects.filter(node__in=silent, state__in=placeholder_pools.LEASED_STATES).update(
        state=Placeholder.State.LOST, state_since=Now(), reason="the node's lease expired"
    )
    if any(row.state == _State.READY for row in rows):
        endpoints.announce()
    return len(rows)


def _nodes() -> tuple[NodeView, ...]:
    rows = Node.objects.filter(lease_expires_at__gt=Now(), cordoned=False).select_related("pool").order_by("name")
    slots: dict[UUID, Counter[str]] = defaultdict(Counter)
    leased = (
        Slot.objects.filter(health=Slot.Health.OK)
        .annotate(lease=FilteredRelation("leases", condition=Q(leases__released_at=None)))
        .values_list("node_id", "lease__kind", "lease__placeholder__state", "lease__placeholder__level")
        .annotate(
            holder=F("lease__placeholder_id"),
            count=F("lease__placeholder__slot_count"),
            engine=F("lease__placeholder__engine"),
            source=F("lease__placeholder__deployment__revision__source"),
            arguments=F("lease__placeholder__deployment__revision__engine_args"),
            version=F("lease__placeholder__deployment__revision__engine_version"),
            target=F("lease__placeholder__target_level"),
        )
    )
    warm: dict[UUID, Counter[str]] = defaultdict(Counter)
    warming: dict[UUID, Counter[str]] = defaultdict(Counter)
    seen: set[UUID] = set()
    for node_id, kind, state, level, holder, count, engine, source, arguments, version, target in leased:
        slots[node_id][kind or "free"] += 1
        if holder is None or holder in seen:
            continue
        seen.add(holder)
        offered = promotion.kind_of(import_class(engine, source or "", arguments or (), version or ""), count)
        if (state, level) == (Placeholder.State.WARM, Level.H2):
            warm[node_id][offered] += 1
        elif (state, target) in _WARMING:
            warming[node_id][offered] += 1
    replicas = Counter(Replica.objects.exclude(state__in=ENDED).exclude(node=None).values_list("node_id", flat=True))
    return tuple(
        NodeView(
            id=row.id,
            name=row.name,
            pool_id=row.pool_id,
            replicas=replicas[row.id],
            free=slots[row.id]["free"],
            with_placeholder=slots[row.id]["placeholder"],
            warm=warm[row.id],
            warming=warming[row.id],
            engines=row.known_engines,
            size=sum(slots[row.id].values()),
            has_gpus=row.pool.kind == "gpu",
        )
        for row in rows
    )


def _deployments(
    fetched: weights.Fetched,
    opened: Mapping[UUID, OpenRollout],
    works_again: Mapping[UUID, tuple[UUID, ...]] = MappingProxyType({}),
    lacking: Lacked = MappingProxyType({}),
) -> tuple[DeploymentView, ...]:
    links = pool_requirements.usable_links()
    replicas = _replicas(opened, lacking)
    found = []
    waited = ExpressionWrapper(Now() - F("waits_since"), output_field=DurationField())
    for row in Deployment.objects.select_related("revision").annotate(waited=waited).order_by("id"):
        of_rollout = opened.get(row.id)
        there = replicas[row.id]
        view = DeploymentView(
            id=row.id,
            desired=0 if row.archived_at else row.desired_replicas,
            pool_ids=tuple(link.pool_id for link in links.get(row.id, ())),
            replicas=tuple(each for kind, each in there if kind == "earlier" or of_rollout is None),
            import_class=promotion.needed(row.revision),
            engine_version=_engine_version(row.revision),
            slots_per_replica=row.slots_per_replica,
            prepared={link.pool_id: link.prepared_replicas for link in links.get(row.id, ()) if link.prepared_replicas},
            weights=_weights(row.revision, fetched),
            works_again=works_again.get(row.id, ()),
            waited_seconds=None if row.waited is None else row.waited.total_seconds(),
        )
        if of_rollout is not None:
            made = tuple(each for kind, each in there if kind == "new")
            strays = tuple(each for kind, each in there if kind == "stray")
            view = replace(view, rollout=_rollout(view, of_rollout, made, strays, fetched))
        found.append(view)
    return tuple(found)


def _replicas(opened: Mapping[UUID, OpenRollout], lacking: Lacked) -> dict[UUID, list[tuple[_Kind, ReplicaView]]]:
    """Return the wanted replicas of each deployment in order of creation, and what each is to its open rollout.

    One that still loads adapters which others serve counts as one that starts, so that it replaces none of those.
    """
    found: dict[UUID, list[tuple[_Kind, ReplicaView]]] = defaultdict(list)
    recent = Q(state=_State.FAILED, state_since__gt=Now() - FAILED_REST)
    wanted = Replica.objects.filter(desired_state=Replica.Desired.RUNNING).exclude(state=_State.STOPPED)
    crashes = _replaced_crashes()
    for row in wanted.select_related("node", "rollout", "deployment").annotate(recent=recent).order_by("id"):
        crashed = row.state == _State.BACKOFF and row.startup_seconds is not None
        of_rollout = opened.get(row.deployment_id)
        kind = _kind(row, of_rollout)
        loads = any(not each.error for each in lacking.get(row.id, ()))
        view = ReplicaView(
            id=row.id,
            state=_State.WARMING if loads and row.state == _State.READY else row.state,
            node_id=row.node_id,
            pool_id=row.node.pool_id if row.node else None,
            requests=row.running_requests + row.waiting_requests,
            failed_recently=row.recent,
            leaving=row.leaving,
            moves_back=row.moves_back,
            crashed=crashed and crashes[row.deployment_id] < MOST_REVIVALS,
            serves=not loads
            and (row.id in of_rollout.serving if of_rollout is not None and kind == "new" else _serves(row)),
        )
        found[row.deployment_id].append((kind, view))
    return found


def _kind(row: Replica, opened: OpenRollout | None) -> _Kind:
    """Return whether the open rollout made the replica, or it is what the deployment serves; else it is a stray."""
    if opened is not None and row.rollout_id == opened.row.id:
        return "new"
    made_for_good = row.rollout is None or row.rollout.state == Rollout.State.DONE
    return "earlier" if made_for_good and row.revision_id == row.deployment.revision_id else "stray"


def _serves(row: Replica) -> bool:
    return row.state == _State.READY and row.canary in Replica.PROVEN


def _rollout(
    view: DeploymentView,
    opened: OpenRollout,
    made: tuple[ReplicaView, ...],
    strays: tuple[ReplicaView, ...],
    fetched: weights.Fetched,
) -> RolloutView:
    row, policy = opened.row, opened.policy
    serving = sum(each.serves for each in (*view.replicas, *made, *strays))
    return RolloutView(
        id=row.id,
        target=_target(view, row, made, _weights(row.revision, fetched)),
        state=cast(Literal["running", "paused", "undoing"], row.state),
        proven=opened.proven,
        max_surge=policy.max_surge,
        max_unavailable=policy.max_unavailable,
        most_serving=rollouts.counted_serving(opened, serving),
        draining=opened.draining,
        strays=strays,
    )


def _target(
    view: DeploymentView, row: Rollout, made: tuple[ReplicaView, ...], there: Mapping[UUID, WeightsState] | None
) -> DeploymentView:
    """Return the deployment as the rollout makes it."""
    return replace(
        view,
        replicas=made,
        import_class=promotion.needed(row.revision),
        engine_version=_engine_version(row.revision),
        slots_per_replica=row.slots_per_replica,
        weights=there,
    )


def obstacle(row: Rollout, may_be_missing: int) -> str:
    """Return why a rollout that would begin now finds no room for a new replica, with figures; empty if it does."""
    nodes = _nodes()
    view = next(each for each in _deployments({}, {}) if each.id == row.deployment_id)
    wanted = _target(view, row, (), None)
    return rollout_steps.obstacle(wanted, view.replicas, view.slots_per_replica, FreeSlots(nodes), may_be_missing)


def _weights(revision: ModelRevision, fetched: weights.Fetched) -> Mapping[UUID, WeightsState] | None:
    """Return the state of the revision's files by node; None if no node has to fetch them."""
    return fetched.get(revision.id, {}) if _is_fetched(revision) else None


def _engine_version(revision: ModelRevision) -> str:
    return named_version(revision.engine, revision.engine_version)


def _is_fetched(revision: ModelRevision) -> bool:
    return is_fetched(revision.engine, revision.source, revision.engine_args)


def _replaced_crashes() -> Counter[UUID]:
    """Count each deployment's recent replicas that crashed and were replaced; a minute of health resets a crash."""
    given_up = Replica.objects.filter(desired_state=Replica.Desired.STOPPED, attempts__gt=0)
    return Counter(given_up.filter(created_at__gt=Now() - FAILED_REST).values_list("deployment_id", flat=True))


def _note_waits(steps: Steps) -> None:
    """Store which deployments wait for slots, since when, and which node is kept for them."""
    rows = Deployment.objects.all()
    rows.filter(id__in=steps.homeless, waits_since=None).update(waits_since=Now())
    rows.exclude(id__in=steps.homeless).exclude(waits_since=None).update(waits_since=None)
    rows.exclude(id__in=steps.kept).exclude(kept_node=None).update(kept_node=None)
    for deployment_id, node_id in steps.kept.items():
        rows.filter(~Q(kept_node=node_id), id=deployment_id).update(kept_node=node_id)
    slot_waits.renew(steps.homeless)


def _place(steps: Steps, opened: Mapping[UUID, OpenRollout]) -> set[UUID]:
    """Create the replicas of the plan that get their slots, each with its fence; return the nodes with a new one."""
    rows = {row.id: row for row in Deployment.objects.select_related("revision")}
    made = {node_id for deployment_id, node_id in steps.place if reserve(rows[deployment_id], node_id) is not None}
    for deployment_id, node_id in steps.roll:
        if reserve(rows[deployment_id], node_id, rollout=opened[deployment_id].row) is not None:
            made.add(node_id)
    moved = [each for each in steps.move_back if reserve(rows[each[0]], each[2]) is not None]
    return made | failover.follow(steps, moved)


@transaction.atomic
def reserve(
    deployment: Deployment, node_id: UUID, *, promote: UUID | None = None, rollout: Rollout | None = None
) -> Replica | None:
    """Create a replica on the node and lease its slots; return None and create nothing if the node has too few.

    ``promote`` requires one particular placeholder; ``rollout`` makes it one of that rollout, with a canary to pass.
    The caller wakes the agent.
    """
    revision = deployment.revision if rollout is None else rollout.revision
    slots = deployment.slots_per_replica if rollout is None else rollout.slots_per_replica
    row = Replica(deployment=deployment, revision=revision, node_id=node_id, reserved_at=Now(), rollout=rollout)
    row.canary = Replica.Canary.NONE if rollout is None else Replica.Canary.PENDING
    row.save()
    request = slot_leases.SlotRequest(
        replica_id=row.id,
        deployment_id=deployment.id,
        import_class=promotion.needed(revision),
        name=f"{deployment.name}/{str(row.id)[-6:]}",
        promote=promote,
    )
    claim = slot_leases.claim(request, node_id, slots)
    if claim is None:
        row.delete()
        return None
    level = Level.H2 if claim.promoted else Level.H0 if claim.evicted else Level.COLD
    Replica.objects.filter(id=row.id).update(
        state=_State.RESERVED,
        state_since=Now(),
        fence=claim.fence,
        placeholder_id=claim.promoted,
        start_level=level,
    )
    promoted = "a warm placeholder is promoted" if claim.promoted else "none is promoted"
    gets = f"{len(claim.slots)} slots, {len(claim.evicted)} placeholders evicted, {promoted}"
    _event(row, "", _State.REQUESTED, "wanted")
    _event(row, _State.REQUESTED, _State.RESERVED, gets)
    row.refresh_from_db()
    return row


def _event(row: Replica, before: str, after: str, reason: str) -> None:
    ReplicaEvent.objects.create(replica=row, from_state=before, to_state=after, reason=reason)


def _stop(steps: Steps) -> set[UUID]:
    """Mark replicas as no longer wanted; their agents stop them. Return the nodes concerned."""
    rows = list(Replica.objects.filter(id__in=steps.stop).select_for_update().order_by("id"))
    withdraw(Replica.objects.filter(id__in=[row.id for row in rows]))
    for row in rows:
        ReplicaEvent.objects.create(
            replica=row, from_state=row.state, to_state=row.state, reason=_REASONS[steps.stop[row.id]]
        )
    if any(row.state == _State.READY for row in rows):
        endpoints.announce()
    return {row.node_id for row in rows if row.node_id is not None}


def withdraw(replicas: QuerySet[Replica], *, drain_seconds: int | None = None) -> int:
    """Mark replicas to stop once their requests have ended, at the latest after their deployment's drain time.

    ``drain_seconds`` overrides that time. Returns how many replicas were newly marked. The caller announces the change.
    """
    withdrawn = 0
    for row in replicas.filter(desired_state=Replica.Desired.RUNNING).select_related("deployment").order_by("id"):
        longest = dt.timedelta(seconds=row.deployment.drain_seconds if drain_seconds is None else drain_seconds)
        withdrawn += Replica.objects.filter(id=row.id, desired_state=Replica.Desired.RUNNING).update(
            desired_state=Replica.Desired.STOPPED, drain_deadline=Now() + longest
        )
    return withdrawn
