"""The steps of a rollout, decided from facts alone: over simulated ticks, and one by one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from workers.scheduler.plan import plan
from workers.scheduler.rollout.steps import obstacle
from workers.scheduler.slots.placement import DeploymentView, FreeSlots, NodeView, ReplicaView, RolloutView

POOL, CHAT, ROLLOUT = UUID(int=1), UUID(int=100), UUID(int=200)


@dataclass
class Engine:
    """A replica in simulated ticks. It serves ``start_ticks`` after it was placed, and drains before it ends."""

    id: UUID
    node: int
    slots: int
    is_new: bool
    ready_at: int
    gone_at: int | None = None


@dataclass
class World:
    """Nodes with slots, and a rollout that is planned tick by tick."""

    slots: dict[int, int]
    desired: int
    surge: int = 1
    unavailable: int = 1
    new_slots: int = 1
    start_ticks: int = 3
    drain_ticks: int = 2
    broken: bool = False
    state: str = "running"
    now: int = 0
    engines: list[Engine] = field(default_factory=list)
    most_serving: int = 0
    least_serving: int = 1000
    most_present: int = 0
    finished: bool = False
    waits_for: str = ""
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))

    def add(self, node: int, *, is_new: bool = False, ready: bool = True) -> None:
        """Add an engine."""
        slots = self.new_slots if is_new else 1
        ready_at = self.now if ready else self.now + self.start_ticks
        self.engines.append(Engine(UUID(int=next(self.ids)), node, slots, is_new, ready_at))

    def serving(self, *, is_new: bool | None = None) -> int:
        """Return how many engines serve."""
        return sum(self._serves(each) for each in self._wanted() if is_new is None or each.is_new == is_new)

    def _serves(self, engine: Engine) -> bool:
        return engine.ready_at <= self.now and not (engine.is_new and self.broken)

    def _wanted(self) -> list[Engine]:
        return [each for each in self.engines if each.gone_at is None]

    def _view(self, engine: Engine) -> ReplicaView:
        return ReplicaView(
            id=engine.id,
            state="ready" if engine.ready_at <= self.now else "starting",
            node_id=UUID(int=engine.node),
            pool_id=POOL,
            requests=0,
            serves=self._serves(engine),
        )

    def deployment(self) -> DeploymentView:
        """Return the facts of now."""
        views = {kind: tuple(self._view(each) for each in self._wanted() if each.is_new == kind) for kind in (0, 1)}
        old = DeploymentView(
            id=CHAT, desired=self.desired, pool_ids=(POOL,), replicas=views[False], import_class="simulated"
        )
        self.most_serving = max(self.most_serving, self.serving())
        rollout = RolloutView(
            id=ROLLOUT,
            target=replace(old, replicas=views[True], slots_per_replica=self.new_slots),
            state=self.state,  # type: ignore[arg-type]  # of the test
            proven=self.serving(is_new=True) > 0,
            max_surge=self.surge,
            max_unavailable=self.unavailable,
            most_serving=self.most_serving,
            draining=sum(each.gone_at is not None for each in self.engines),
        )
        return replace(old, rollout=rollout)

    def nodes(self) -> list[NodeView]:
        """Return the nodes with their free slots."""
        held = {node: sum(each.slots for each in self.engines if each.node == node) for node in self.slots}
        return [
            NodeView(id=UUID(int=node), name=f"n{node}", pool_id=POOL, replicas=0, free=count - held[node])
            for node, count in self.slots.items()
        ]

    def tick(self) -> None:
        """Plan once, and let time pass."""
        self.engines = [each for each in self.engines if each.gone_at is None or each.gone_at > self.now]
        steps = plan([self.deployment()], self.nodes())
        for engine in self.engines:
            if engine.id in steps.stop:
                engine.gone_at = self.now + self.drain_ticks
        for places, is_new in ((steps.place, False), (steps.roll, True)):
            for _, node_id in places:
                self.add(node_id.int, is_new=is_new, ready=False)
        self.waits_for = steps.waits_for.get(ROLLOUT, "")
        self.finished = ROLLOUT in steps.finished
        self.least_serving = min(self.least_serving, self.serving())
        self.most_present = max(self.most_present, len(self._wanted()))
        assert all(node.free >= 0 for node in self.nodes())
        self.now += 1

    def run(self, ticks: int = 200) -> None:
        """Tick until the rollout is finished."""
        for _ in range(ticks):
            self.tick()
            if self.finished:
                return
        pytest.fail(f"not finished: {self.waits_for}, {self.engines}")


def world(nodes: dict[int, int], old: int, **options: int) -> World:
    made = World(slots=nodes, desired=old, **options)  # type: ignore[arg-type]  # of the tests
    places = [node for node, slots in nodes.items() for _ in range(slots)]
    for node in places[:old]:
        made.add(node)
    return made


@pytest.mark.parametrize("surge", [1, 2, 5])
@pytest.mark.parametrize("desired", [1, 2, 5])
def test_with_room_nothing_is_missing_at_any_time(desired: int, surge: int) -> None:
    rolled = world({1: 4, 2: 8}, desired, surge=surge)
    rolled.run()
    assert rolled.serving(is_new=True) == desired
    assert rolled.least_serving >= desired
    assert rolled.most_present <= desired + surge


@pytest.mark.parametrize(("desired", "unavailable"), [(1, 1), (3, 1), (4, 2)])
def test_without_room_no_more_are_missing_than_may_be(desired: int, unavailable: int) -> None:
    rolled = world({1: desired}, desired, unavailable=unavailable)
    rolled.run()
    assert rolled.serving(is_new=True) == desired
    assert rolled.least_serving == desired - 1  # one at a time is enough where each frees what a new one needs


def test_the_first_new_replica_is_alone_until_it_serves() -> None:
    rolled = world({1: 12}, 4, surge=4)
    for _ in range(rolled.start_ticks):
        rolled.tick()
        assert sum(each.is_new for each in rolled.engines) == 1
    rolled.tick()
    assert sum(each.is_new for each in rolled.engines) == 4


def test_one_that_never_serves_stops_nothing_where_there_is_room() -> None:
    rolled = world({1: 4}, 2)
    rolled.broken = True
    for _ in range(30):
        rolled.tick()
    assert (rolled.serving(is_new=False), rolled.most_present, rolled.finished) == (2, 3, False)


def test_undoing_brings_the_old_ones_back_and_takes_broken_ones_away_at_once() -> None:
    rolled = world({1: 2}, 2)  # no room
    for _ in range(8):
        rolled.tick()
    assert rolled.serving(is_new=True) == 1
    rolled.broken, rolled.state = True, "undoing"
    rolled.tick()
    assert not any(each.is_new and each.gone_at is None for each in rolled.engines)
    rolled.run()
    for _ in range(10):
        rolled.state = "undoing"
        rolled.tick()
    assert rolled.serving(is_new=False) == 2


def test_undoing_healthy_replicas_leaves_nothing_out() -> None:
    rolled = world({1: 5}, 4)
    while rolled.serving(is_new=True) < 3:
        rolled.tick()
    rolled.state, rolled.least_serving = "undoing", 1000
    rolled.run()
    assert (rolled.serving(is_new=False), rolled.serving(is_new=True)) == (4, 0)
    assert rolled.least_serving >= 4


def test_a_paused_rollout_keeps_both_kinds() -> None:
    rolled = world({1: 8}, 3)
    while not rolled.serving(is_new=True):
        rolled.tick()
    rolled.state, before = "paused", len(rolled.engines)
    for _ in range(20):
        rolled.tick()
    assert len([each for each in rolled.engines if each.gone_at is None]) == before
    rolled.engines = [each for each in rolled.engines if each.is_new] + rolled.engines[-2:-1]  # two are gone
    rolled.tick()
    assert sum(each.is_new for each in rolled.engines if each.gone_at is None) == 2


def test_a_larger_gang_takes_the_place_of_several_old_ones_on_one_node() -> None:
    rolled = world({1: 4, 2: 4}, 8, new_slots=4, unavailable=4)
    rolled.desired = 2
    rolled.most_serving = 0
    rolled.run()
    assert rolled.serving(is_new=True) == 2


def test_a_gang_that_cannot_fit_is_refused_with_figures() -> None:
    rolled = world({1: 4, 2: 4}, 8, new_slots=4, unavailable=2)
    view = rolled.deployment()
    assert view.rollout is not None
    told = obstacle(view.rollout.target, view.replicas, 1, FreeSlots(rolled.nodes()), 2)
    assert told == (
        "a replica takes 4 slots of one node: n1 has 0 free and 4 of old replicas, n2 has 0 free and 4 of old "
        "replicas; 2 replicas may be missing now"
    )
    assert not obstacle(view.rollout.target, view.replicas, 1, FreeSlots(rolled.nodes()), 4)


def test_a_deployment_without_desired_replicas_waits() -> None:
    rolled = world({1: 4}, 1)
    rolled.desired = 0
    rolled.tick()
    assert "scaled to zero" in rolled.waits_for and not rolled.serving()
    rolled.desired = 1
    rolled.run()
    assert rolled.serving(is_new=True) == 1


def test_scaled_down_meanwhile_it_keeps_the_new_replica_that_serves() -> None:
    rolled = world({1: 8}, 2, surge=2)
    while not rolled.serving(is_new=True):
        rolled.tick()
    rolled.tick()
    assert sum(each.is_new and each.ready_at > rolled.now for each in rolled.engines) == 1
    rolled.desired = 1
    rolled.least_serving = 1000
    rolled.run()
    assert (rolled.serving(is_new=True), rolled.least_serving) == (1, 1)


def test_it_ends_only_when_every_new_replica_serves() -> None:
    rolled = world({1: 8}, 3)
    for engine in rolled.engines[:2]:
        engine.ready_at = 10**6  # they never did
    rolled.run()
    assert rolled.serving(is_new=True) == 3


def test_it_ends_with_fewer_new_ones_once_the_node_of_the_old_ones_is_lost() -> None:
    rolled = world({1: 4, 2: 2}, 3)
    while rolled.serving(is_new=True) < 2:
        rolled.tick()
    rolled.engines = [replace(each, node=2) for each in rolled.engines if each.is_new][:2]
    del rolled.slots[1]
    rolled.run()
    assert rolled.serving(is_new=True) == 2


def test_a_paused_rollout_can_be_scaled_to_zero() -> None:
    rolled = world({1: 4}, 2)
    rolled.tick()
    rolled.state, rolled.desired = "paused", 0
    rolled.tick()
    assert rolled.serving() == 0


def test_while_paused_a_replica_without_its_canary_replaces_no_drained_one() -> None:
    rolled = world({1: 1, 2: 4}, 1)
    view = rolled.deployment()
    assert view.rollout is not None
    old = replace(view.replicas[0], leaving=True)
    new = replace(old, id=UUID(int=1), node_id=UUID(int=2), leaving=False, serves=False)
    paused = replace(view.rollout, state="paused", target=replace(view.rollout.target, replicas=(new,)))
    steps = plan([replace(view, replicas=(old,), rollout=paused)], rolled.nodes())
    assert steps.stop == {}


def test_what_a_replaced_rollout_made_goes_in_both_directions() -> None:
    rolled = world({1: 8}, 2)
    view = rolled.deployment()
    assert view.rollout is not None
    first, second = view.replicas
    stray = replace(second, id=UUID(int=1), serves=False)
    for state in ("running", "undoing"):
        rollout = replace(view.rollout, state=state, strays=(stray,), proven=True, most_serving=1)
        steps = plan([replace(view, replicas=(first,), rollout=rollout)], rolled.nodes())
        assert len(steps.place) + len(steps.roll) == 1
        assert (stray.id in steps.stop, steps.finished) == (state == "undoing", set())


def test_more_replicas_can_be_wanted_meanwhile() -> None:
    rolled = world({1: 8}, 2)
    rolled.tick()
    rolled.desired = 4
    rolled.run()
    for _ in range(10):
        rolled.tick()
    assert rolled.serving(is_new=True) == 4
    assert rolled.least_serving >= 2


def test_an_old_replica_that_never_serves_makes_room_first() -> None:
    rolled = world({1: 2}, 2)
    rolled.engines[1].ready_at = 10**6
    rolled.run()
    assert rolled.least_serving >= 1
