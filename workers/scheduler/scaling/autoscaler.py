"""Set how many replicas each deployment should have, from what the gateways have in flight.

The rules are in ``workers.scheduler.scaling.scaling_policy``. This module reads their facts from the database, and
writes their decisions, in a number of statements that does not depend on the number of replicas.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.db import connection
from django.db.models import Avg, Count, FilteredRelation, Q, Sum
from django.db.models.functions import Now

from reserved_capacity import registry
from workers.models import Deployment, DeploymentPool, Level, Placeholder, Replica, Rollout, ScaleDecision, Slot
from workers.scheduler import staging
from workers.scheduler.scaling import load_curves, scaling_policy, scaling_signals
from workers.scheduler.scaling.scaling_policy import Decision, Facts, Memory, PoolFacts
from workers.scheduler.scaling.scaling_signals import EngineFacts
from workers.serving import gateway_load, learned_targets, pool_requirements, start_times
from workers.serving.gateway_load import DeploymentLoad
from workers.serving.learned_targets import Targets
from workers.serving.start_times import Summaries

_State = Replica.State
#: States of a replica that serves or will serve; in the others it can be replaced.
_WORKING = (
    _State.REQUESTED,
    _State.RESERVED,
    _State.STARTING,
    _State.WARMING,
    _State.READY,
    _State.SUSPECT,
    _State.BACKOFF,
)
_STARTING = (_State.REQUESTED, _State.RESERVED, _State.STARTING, _State.WARMING)
_REMEMBERED = ("more_wanted_since", "less_wanted_since", "less_wanted_peak", "sampled_tokens", "sampled_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """What the facts of every deployment are made from.

    ``replicas``, and those ``starting`` for the first time, are counted by (deployment, pool). ``open_slots`` are the
    slots of each live node that a replica may take, by pool; ``warm`` are the (pool, engine) pairs with a zygote.
    """

    now: dt.datetime
    links: Mapping[UUID, Sequence[DeploymentPool]]
    replicas: Counter[tuple[UUID, UUID]]
    starting: Counter[tuple[UUID, UUID]]
    open_slots: Mapping[UUID, Sequence[int]]
    warm: frozenset[tuple[UUID, str]]
    measured: Summaries
    demand: Mapping[UUID, DeploymentLoad]
    busy_at: Mapping[UUID, dt.datetime]
    engines: Mapping[UUID, EngineFacts]
    targets: Targets
    #: Deployments with an open rollout.
    rolling: frozenset[UUID]
    #: Slots of each deployment, by its name, that are reserved now or soon.
    reserved: Mapping[str, int]


def decide_all() -> int:
    """Decide for every deployment and return how many changed. Call it inside reconcile's transaction.

    Each change is stored with its decision: the facts and the reason.
    """
    rows = list(
        Deployment.objects.filter(archived_at=None)
        .select_related("revision")
        .select_for_update(of=("self",), no_key=True)
        .order_by("id")
    )
    fleet = _fleet(rows)
    changed: list[Deployment] = []
    links: list[DeploymentPool] = []
    decisions: list[ScaleDecision] = []
    scaled = 0
    for row in rows:
        facts = _facts(row, fleet)
        decision = scaling_policy.decide(facts)
        decisions += _records(row, facts, decision)
        links += [link for link in fleet.links[row.id] if _link_changed(link, decision)]
        changed += [row] if _changed(row, decision) else []
        scaled += bool(decision.steps)
    Deployment.objects.bulk_update(changed, ("desired_replicas", *_REMEMBERED))
    DeploymentPool.objects.bulk_update(links, ("prepared_replicas", "not_needed_since"))
    ScaleDecision.objects.bulk_create(decisions)
    staging.renew(fleet.now)
    gateway_load.forget_silent()
    return scaled


def _fleet(rows: Sequence[Deployment]) -> _Fleet:
    links: dict[UUID, list[DeploymentPool]] = defaultdict(list)
    for link in DeploymentPool.objects.select_related("pool").order_by("sequence"):
        links[link.deployment_id].append(link)
    replicas, starting = _count_replicas()
    warm = Placeholder.objects.filter(
        state=Placeholder.State.WARM, level=Level.H2, node__lease_expires_at__gt=Now(), node__cordoned=False
    )
    now, demand = _now(), gateway_load.demand()
    rolling = frozenset(Rollout.objects.filter(finished_at=None).values_list("deployment_id", flat=True))
    load_curves.renew([row for row in rows if row.id not in rolling], demand, now)
    return _Fleet(
        now=now,
        links=links,
        replicas=replicas,
        starting=starting,
        open_slots=_open_slots(),
        warm=frozenset(warm.values_list("node__pool_id", "engine").distinct()),
        measured=start_times.summaries({row.revision_id for row in rows}),
        demand=demand,
        busy_at=gateway_load.busy_at(),
        engines=_engines({row.id for row in rows if row.objectives}),
        targets=learned_targets.read(rows),
        rolling=rolling,
        reserved=registry.slots_now(now),
    )


def _engines(deployments: Collection[UUID]) -> dict[UUID, EngineFacts]:
    """Return what the ready replicas of these deployments report; nothing is read where none follows a signal."""
    if not deployments:
        return {}
    rows = Replica.objects.filter(
        deployment__in=deployments, state=_State.READY, canary__in=Replica.PROVEN, desired_state=Replica.Desired.RUNNING
    )
    sums = (
        rows.order_by()
        .values("deployment")
        .annotate(
            ready=Count("id"),
            running=Sum("running_requests"),
            waiting=Sum("waiting_requests"),
            kv=Avg("kv_usage"),
            most=Sum("max_requests"),
            saying=Count("max_requests"),
            ttft=Avg("ttft_seconds"),
        )
    )
    return {
        row["deployment"]: EngineFacts(
            ready=row["ready"],
            running=row["running"],
            waiting=row["waiting"],
            kv_usage=row["kv"],
            most_requests=row["most"] if row["saying"] == row["ready"] else None,
            ttft_seconds=row["ttft"],
        )
        for row in sums
    }


def _now() -> dt.datetime:
    """Return the time by the database's clock, by which all ages are measured."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: dt.datetime = cursor.fetchone()[0]
    return now


def _count_replicas() -> tuple[Counter[tuple[UUID, UUID]], Counter[tuple[UUID, UUID]]]:
    """Count the wanted replicas that work, and those of them on their first start; crashed ones do not count."""
    replicas: Counter[tuple[UUID, UUID]] = Counter()
    starting: Counter[tuple[UUID, UUID]] = Counter()
    rows = (
        Replica.objects.filter(desired_state=Replica.Desired.RUNNING, state__in=_WORKING, leaving=False)
        .exclude(node=None)
        .values_list("deployment_id", "node__pool_id")
        .annotate(count=Count("id"), first=Count("id", filter=Q(state__in=_STARTING, attempts=0)))
        .order_by()
    )
    for deployment_id, pool_id, count, first in rows:
        assert pool_id is not None
        replicas[deployment_id, pool_id] = count
        starting[deployment_id, pool_id] = first
    return replicas, starting


def _open_slots() -> dict[UUID, list[int]]:
    """Return, by pool, how many slots each of its live nodes has for replicas."""
    lease = FilteredRelation("leases", condition=Q(leases__released_at=None))
    may_give = Q(lease=None) | Q(lease__placeholder__isnull=False)
    rows = (
        Slot.objects.filter(health=Slot.Health.OK, node__lease_expires_at__gt=Now(), node__cordoned=False)
        .annotate(lease=lease)
        .filter(may_give)
        .values_list("node__pool_id", "node_id")
        .annotate(count=Count("id"))
        .order_by()
    )
    found: dict[UUID, list[int]] = defaultdict(list)
    for pool_id, _, count in rows:
        found[pool_id].append(count)
    return found


def _facts(row: Deployment, fleet: _Fleet) -> Facts:
    pools = tuple(_pool_facts(row, link, fleet) for link in fleet.links[row.id])
    reserved = min(row.max_replicas, math.ceil(fleet.reserved.get(row.name, 0) / row.slots_per_replica))
    return Facts(
        now=fleet.now,
        desired=row.desired_replicas,
        min_replicas=max(row.min_replicas, reserved),
        reserved_replicas=reserved,
        max_replicas=row.max_replicas,
        target_tokens=row.target_tokens_per_replica,
        up_delay_seconds=row.scale_up_delay_seconds,
        down_delay_seconds=row.scale_down_delay_seconds,
        load=fleet.demand.get(row.id, DeploymentLoad()) if fleet.demand else None,
        pools=_without_surge(pools, row.desired_replicas) if row.id in fleet.rolling else pools,
        memory=Memory(**{name: getattr(row, name) for name in _REMEMBERED}),
        busy_at=fleet.busy_at.get(row.id),
        engines=fleet.engines.get(row.id, EngineFacts()),
        objectives=scaling_signals.read(row.objectives),
    )


def _without_surge(pools: Sequence[PoolFacts], desired: int) -> tuple[PoolFacts, ...]:
    """Return the pools without the starts that only replace something: those of a rollout beyond the desired number.

    They serve no more load than there is, so scaling need not wait for them.
    """
    surge = sum(pool.replicas for pool in pools) - desired
    found = []
    for pool in pools:
        replacing = max(0, min(pool.starting, surge))
        surge -= replacing
        found.append(replace(pool, starting=pool.starting - replacing))
    return tuple(found)


def _pool_facts(row: Deployment, link: DeploymentPool, fleet: _Fleet) -> PoolFacts:
    pool = link.pool
    unusable = bool(pool_requirements.unmet(pool_requirements.read(row.requires), pool))
    open_slots = () if unusable else fleet.open_slots.get(pool.id, ())
    return PoolFacts(
        id=pool.id,
        name=pool.name,
        region=pool.region,
        replicas=fleet.replicas[row.id, pool.id],
        starting=fleet.starting[row.id, pool.id],
        room=sum(slots // row.slots_per_replica for slots in open_slots),
        high_water=pool.high_water,
        low_water=pool.low_water,
        prepared=link.prepared_replicas,
        start_seconds=_start_seconds(row, pool.id, fleet),
        not_needed_since=link.not_needed_since,
        target_tokens=fleet.targets.get((row.id, pool.id)),
    )


def _start_seconds(row: Deployment, pool_id: UUID, fleet: _Fleet) -> float | None:
    """Return the time within which 95 % of starts end at the pool's present warmth; None if none was measured."""
    warm = (pool_id, row.revision.engine) in fleet.warm
    p95 = {summary.level: summary.p95_seconds for summary in fleet.measured.get(row.revision_id, ())}
    return p95.get(Level.H2 if warm else Level.COLD, p95.get(Level.COLD))


def _changed(row: Deployment, decision: Decision) -> bool:
    """Write the decision into the row and return whether the row changed."""
    after = {name: getattr(decision.memory, name) for name in _REMEMBERED} | {"desired_replicas": decision.desired}
    differs = any(getattr(row, name) != value for name, value in after.items())
    for name, value in after.items():
        setattr(row, name, value)
    return differs


def _link_changed(link: DeploymentPool, decision: Decision) -> bool:
    """Write the decision into the link and return whether the link changed."""
    before = (link.prepared_replicas, link.not_needed_since)
    link.prepared_replicas = decision.prepared[link.pool_id]
    link.not_needed_since = decision.not_needed_since[link.pool_id]
    return before != (link.prepared_replicas, link.not_needed_since)


def _records(row: Deployment, facts: Facts, decision: Decision) -> list[ScaleDecision]:
    return [
        ScaleDecision(
            deployment=row,
            pool_id=step.pool_id,
            action=step.action,
            from_replicas=step.before,
            to_replicas=step.after,
            reason=step.reason[:500],
            inputs=scaling_policy.inputs_of(facts),
        )
        for step in decision.steps
    ]
