"""A fleet in simulated time: the real scaling and placement, replicas with a start-up time, no database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from workers.scheduler.plan import plan
from workers.scheduler.scaling import scaling_policy
from workers.scheduler.scaling.scaling_policy import Facts, Memory, PoolFacts, Step
from workers.scheduler.slots.placement import DeploymentView, NodeView, ReplicaView
from workers.serving.gateway_load import DeploymentLoad

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DEPLOYMENT = UUID(int=100)


def facts_from(inputs: object) -> Facts:
    """Return the facts that a decision was stored with. Raises msgspec.ValidationError for anything else."""
    return msgspec.convert(inputs, Facts)


def tokens(count: int, held: int = 0) -> DeploymentLoad:
    """Return a load of requests of 100 tokens each."""
    return DeploymentLoad(
        in_flight_requests=count // 100, in_flight_tokens=count, queued_requests=held // 100, queued_tokens=held
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPool:
    """One node with ``slots``, on which a start takes ``start_seconds``."""

    id: UUID
    slots: int
    start_seconds: float
    high_water: float = 0.7
    low_water: float = 0.45


@dataclass(slots=True, kw_only=True)
class SimulatedReplica:
    """A replica that serves from ``ready_at`` on."""

    id: UUID
    pool: SimulatedPool
    ready_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The fleet after one tick: the desired replicas, the ready replicas by pool, and the decision."""

    seconds: float
    load: DeploymentLoad | None
    desired: int
    ready: dict[UUID, int]
    there: dict[UUID, int]
    steps: tuple[Step, ...]


@dataclass(slots=True, kw_only=True)
class SimulatedFleet:
    """One deployment on pools, and its replicas so far."""

    pools: tuple[SimulatedPool, ...]
    minimum: int
    maximum: int
    desired: int
    target_tokens: int = 1000
    up_delay_seconds: float = 5.0
    down_delay_seconds: float = 300.0
    tick_seconds: float = 2.0
    memory: Memory = field(default_factory=Memory)
    prepared: dict[UUID, int] = field(default_factory=dict)
    not_needed_since: dict[UUID, dt.datetime | None] = field(default_factory=dict)
    replicas: list[SimulatedReplica] = field(default_factory=list)
    made: int = 0

    def run(self, load: Callable[[float, int], DeploymentLoad | None], seconds: float) -> list[Moment]:
        """Tick until ``seconds`` have passed. ``load`` is called with the time and the number of ready replicas."""
        return list(self._ticks(load, seconds))

    def _ticks(self, load: Callable[[float, int], DeploymentLoad | None], seconds: float) -> Iterator[Moment]:
        now = 0.0
        while now <= seconds:
            reported = load(now, sum(replica.ready_at <= now for replica in self.replicas))
            decision = scaling_policy.decide(self._facts(now, reported))
            self.desired, self.memory = decision.desired, decision.memory
            self.prepared, self.not_needed_since = dict(decision.prepared), dict(decision.not_needed_since)
            self._place(now)
            yield Moment(
                seconds=now,
                load=reported,
                desired=self.desired,
                ready={pool.id: self._count(pool, ready_by=now) for pool in self.pools},
                there={pool.id: self._count(pool) for pool in self.pools},
                steps=decision.steps,
            )
            now += self.tick_seconds

    def _count(self, pool: SimulatedPool, ready_by: float = float("inf")) -> int:
        return sum(replica.pool is pool and replica.ready_at <= ready_by for replica in self.replicas)

    def _facts(self, now: float, load: DeploymentLoad | None) -> Facts:
        return Facts(
            now=START + dt.timedelta(seconds=now),
            desired=self.desired,
            min_replicas=self.minimum,
            max_replicas=self.maximum,
            target_tokens=self.target_tokens,
            up_delay_seconds=self.up_delay_seconds,
            down_delay_seconds=self.down_delay_seconds,
            load=load,
            pools=tuple(self._pool_facts(pool, now) for pool in self.pools),
            memory=self.memory,
        )

    def _pool_facts(self, pool: SimulatedPool, now: float) -> PoolFacts:
        there = self._count(pool)
        return PoolFacts(
            id=pool.id,
            name=f"pool-{pool.id.int}",
            replicas=there,
            starting=there - self._count(pool, ready_by=now),
            room=pool.slots - there,
            high_water=pool.high_water,
            low_water=pool.low_water,
            prepared=self.prepared.get(pool.id, 0),
            start_seconds=pool.start_seconds,
            not_needed_since=self.not_needed_since.get(pool.id),
        )

    def _place(self, now: float) -> None:
        """Apply the plan at once: stopped replicas end, placed ones start."""
        steps = plan([self._view(now)], [self._node(pool) for pool in self.pools])
        self.replicas = [replica for replica in self.replicas if replica.id not in steps.stop]
        by_id = {pool.id: pool for pool in self.pools}
        for _, node_id in steps.place:
            self.made += 1
            pool = by_id[node_id]
            self.replicas.append(
                SimulatedReplica(id=UUID(int=1000 + self.made), pool=pool, ready_at=now + pool.start_seconds)
            )

    def _view(self, now: float) -> DeploymentView:
        return DeploymentView(
            id=DEPLOYMENT,
            desired=self.desired,
            pool_ids=tuple(pool.id for pool in self.pools),
            replicas=tuple(
                ReplicaView(
                    id=replica.id,
                    state="ready" if replica.ready_at <= now else "starting",
                    node_id=replica.pool.id,
                    pool_id=replica.pool.id,
                    requests=0,
                )
                for replica in self.replicas
            ),
            import_class="simulated",
            prepared={pool_id: count for pool_id, count in self.prepared.items() if count},
        )

    def _node(self, pool: SimulatedPool) -> NodeView:
        there = self._count(pool)
        return NodeView(
            id=pool.id, name=f"node-{pool.id.int}", pool_id=pool.id, replicas=there, free=pool.slots - there
        )
