"""Gangs of 1, 2, 4 and 8 slots on 4 nodes of 8 slots, under churn: none is booked twice, and none starves."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from django.db.models import F
from django.db.models.functions import Now

from tenants.audit import SYSTEM
from tests.workers.conftest import Fleet, add_node
from workers.fleet import deployments
from workers.fleet.status import inventory
from workers.models import Deployment, Node, Replica, SlotLease
from workers.scheduler import reconciler
from workers.scheduler.plan import plan
from workers.scheduler.slots.placement import DeploymentView, NodeView, ReplicaView, Steps
from workers.scheduler.slots.reservation import KEEP_AFTER, KEEP_FOR

POOL = UUID(int=1)
NODES, SLOTS = 4, 8
TICK_SECONDS = 2.0
LARGE = UUID(int=100)


@dataclass(slots=True)
class Running:
    """A replica of the simulation, and how many ticks it still runs."""

    id: UUID
    deployment: UUID
    node: UUID
    slots: int
    ticks: int


class Churn:
    """Small deployments of which every replica ends some time and is wanted again at once, and one gang of 8.

    The small ones together want more slots than there are, so none stays free for long.
    """

    def __init__(self, seed: int, *, ageing: bool) -> None:
        self.dice, self.ageing, self.number = random.Random(seed), ageing, 1000
        self.sizes = {UUID(int=200 + index): size for index, size in enumerate([1] * 8 + [2] * 8 + [4] * 4)}
        self.running: list[Running] = []
        self.waited: Counter[UUID] = Counter()
        self.large_wanted = False

    def tick(self) -> Steps:
        """End what has run long enough, plan, and place."""
        for each in self.running:
            each.ticks -= 1
        self.running = [each for each in self.running if each.ticks > 0]
        sizes = self.sizes | ({LARGE: SLOTS} if self.large_wanted else {})
        steps = plan([self._view(each, size) for each, size in sizes.items()], self._nodes())
        for deployment, node in steps.place:
            self.number += 1
            ticks = self.dice.randint(5, 40)
            self.running.append(Running(UUID(int=self.number), deployment, node, sizes[deployment], ticks))
        for one in sizes:
            self.waited[one] = self.waited[one] + 1 if one in steps.homeless else 0
        used = self._used()
        assert max(used.values(), default=0) <= SLOTS
        return steps

    def _used(self) -> Counter[UUID]:
        used: Counter[UUID] = Counter()
        for each in self.running:
            used[each.node] += each.slots
        return used

    def _nodes(self) -> list[NodeView]:
        used, counts = self._used(), Counter(each.node for each in self.running)
        return [
            NodeView(
                id=node, name=f"n{node.int}", pool_id=POOL, replicas=counts[node], free=SLOTS - used[node], size=SLOTS
            )
            for node in (UUID(int=10 + number) for number in range(NODES))
        ]

    def _view(self, deployment: UUID, slots: int) -> DeploymentView:
        rows = [
            ReplicaView(id=each.id, state="ready", node_id=each.node, pool_id=POOL, requests=0)
            for each in self.running
            if each.deployment == deployment
        ]
        waited = self.waited[deployment] * TICK_SECONDS if self.ageing and self.waited[deployment] else None
        return DeploymentView(
            id=deployment,
            desired=1 if deployment == LARGE else 2,
            pool_ids=(POOL,),
            replicas=tuple(rows),
            import_class="simulated",
            slots_per_replica=slots,
            waited_seconds=waited,
        )


def turns(seed: int, *, ageing: bool, ticks: int) -> tuple[int, dict[UUID, int]]:
    """Return how often the gang of 8 got a node, and how often each small deployment was placed, under churn."""
    churn = Churn(seed, ageing=ageing)
    for _ in range(50):
        churn.tick()
    churn.large_wanted = True
    placed: Counter[UUID] = Counter()
    for _ in range(ticks):
        placed.update(deployment for deployment, _ in churn.tick().place)
    return placed.pop(LARGE, 0), {each: placed[each] for each in churn.sizes}


@pytest.mark.parametrize("seed", range(5))
def test_a_gang_of_8_gets_its_turn_among_small_ones_that_take_every_free_slot(seed: int) -> None:
    large, small = turns(seed, ageing=True, ticks=1500)
    assert large >= 10
    assert min(small.values()) >= 10


def test_without_its_wait_it_would_starve() -> None:
    assert [turns(seed, ageing=False, ticks=1500)[0] for seed in range(2)] == [0, 0]


def nodes(*free: int) -> list[NodeView]:
    return [
        NodeView(id=UUID(int=10 + at), name=f"n{at}", pool_id=POOL, replicas=SLOTS - count, free=count, size=SLOTS)
        for at, count in enumerate(free)
    ]


def wanting(number: int, slots: int, waited: float | None) -> DeploymentView:
    return DeploymentView(
        id=UUID(int=number),
        desired=1,
        pool_ids=(POOL,),
        replicas=(),
        import_class="simulated",
        slots_per_replica=slots,
        waited_seconds=waited,
    )


def test_the_node_with_most_to_give_is_kept_for_the_one_that_waited_longest() -> None:
    first, second, small = wanting(1, 8, 60.0), wanting(2, 8, 90.0), wanting(3, 1, None)
    steps = plan([first, second, small], nodes(2, 5, 0, 1))
    assert steps.kept == {second.id: UUID(int=11)}
    assert steps.place == [(small.id, UUID(int=10))]
    elsewhere = plan([second, small], nodes(0, 5, 0, 0))
    assert (elsewhere.place, elsewhere.kept) == ([], {second.id: UUID(int=11)})


@pytest.mark.parametrize(
    ("waited", "kept"),
    [(None, False), (KEEP_AFTER - 1, False), (KEEP_AFTER, True), (KEEP_AFTER + KEEP_FOR, False), (4000.0, True)],
)
def test_slots_are_kept_after_a_while_and_not_for_ever(waited: float | None, kept: bool) -> None:
    assert bool(plan([wanting(1, 8, waited)], nodes(7, 0)).kept) is kept


def test_nothing_is_kept_on_nodes_that_are_too_small() -> None:
    small = [replace(each, size=4) for each in nodes(4, 2)]
    assert plan([wanting(1, 8, 60.0)], small).kept == {}


@pytest.mark.django_db
def test_the_database_never_books_a_slot_twice_and_the_gang_gets_its_node(fleet: Fleet) -> None:
    Node.objects.filter(id=fleet.node.id).update(cordoned=True)
    for number in range(NODES):
        add_node(fleet.pool, f"g{number}", slots=SLOTS)
    dice = random.Random(1)
    sizes = {}
    for number, size in enumerate((1, 1, 2, 2, 4)):
        row = deployments.create(
            SYSTEM, name=f"d{number}", revision=fleet.revision, pools=[fleet.pool], replicas=4, slots_per_replica=size
        )
        sizes[row.id] = size
    large, told = None, False
    for at in range(60):
        if at == 5:
            large = deployments.create(
                SYSTEM, name="large", revision=fleet.revision, pools=[fleet.pool], replicas=1, slots_per_replica=8
            )
            sizes[large.id] = 8
        Node.objects.filter(pool=fleet.pool).update(lease_expires_at=Now() + reconciler.LEASE)
        Deployment.objects.exclude(waits_since=None).update(waits_since=F("waits_since") - dt.timedelta(seconds=10))
        reconciler.tick()
        held = SlotLease.objects.filter(released_at=None).values_list("replica_id", "slot__node_id")
        by_replica: dict[UUID, list[UUID]] = {}
        for replica_id, node_id in held:
            by_replica.setdefault(replica_id, []).append(node_id)
        of = dict(Replica.objects.values_list("id", "deployment_id"))
        assert all(len(each) == sizes[of[one]] and len(set(each)) == 1 for one, each in by_replica.items())
        if large is not None and Replica.objects.filter(deployment=large, state="reserved").exists():
            break
        for ended in dice.sample(sorted(by_replica, key=str), k=min(2, len(by_replica))):
            Replica.objects.filter(id=ended).update(state="stopped", desired_state="stopped")
            SlotLease.objects.filter(replica_id=ended, released_at=None).update(released_at=Now())
        told |= large is not None and "are kept for it as they become free" in inventory.obstacles("large")
    else:
        pytest.fail("the gang of 8 got no node")
    assert told
