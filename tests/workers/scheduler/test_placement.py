"""Which replicas to start and stop, decided from facts alone."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from uuid import UUID

from workers.scheduler.plan import plan
from workers.scheduler.slots.placement import DeploymentView, NodeView, ReplicaView
from workers.serving import promotion

FAST, SLOW = UUID(int=1), UUID(int=2)
CHAT = UUID(int=100)


def node(
    number: int, *, pool: UUID = FAST, replicas: int = 0, free: int = 4, with_placeholder: int = 0, warm: int = 0
) -> NodeView:
    return NodeView(
        id=UUID(int=10 + number),
        name=f"n{number}",
        pool_id=pool,
        replicas=replicas,
        free=free,
        with_placeholder=with_placeholder,
        warm={"simulated": warm},
    )


def replica(
    number: int, state: str = "ready", *, on: int = 1, pool: UUID = FAST, requests: int = 0, recent: bool = False
) -> ReplicaView:
    return ReplicaView(
        id=UUID(int=1000 + number),
        state=state,
        node_id=UUID(int=10 + on),
        pool_id=pool,
        requests=requests,
        failed_recently=recent,
    )


def chat(desired: int, *replicas: ReplicaView) -> DeploymentView:
    return DeploymentView(id=CHAT, desired=desired, pool_ids=(FAST, SLOW), replicas=replicas, import_class="simulated")


def test_missing_replicas_go_to_the_least_loaded_nodes_of_the_first_pool() -> None:
    nodes = [node(1, replicas=2), node(2), node(3, pool=SLOW)]
    steps = plan([chat(3)], nodes)
    assert tuple(steps.place) == ((CHAT, node(2).id), (CHAT, node(2).id), (CHAT, node(1).id))
    assert steps.stop == {}


def test_a_gang_on_gpus_goes_where_a_placeholder_has_as_many_slots() -> None:
    one, two = "simulated", promotion.kind_of("simulated", 2)
    gang = replace(chat(1), slots_per_replica=2)
    for has_gpus, warm, chosen in ((True, two, 2), (True, one, 1), (False, one, 2), (False, two, 1)):
        empty, busy = (replace(node(number), has_gpus=has_gpus) for number in (1, 2))
        busy = replace(busy, with_placeholder=2, free=2, warm={warm: 1}, replicas=1)
        assert plan([gang], [empty, busy]).place == [(CHAT, UUID(int=10 + chosen))], (has_gpus, warm)


def test_a_crashed_replica_gives_way_to_a_warm_placeholder() -> None:
    crashed = dataclasses.replace(replica(1, "backoff"), crashed=True)
    steps = plan([chat(2, crashed, replica(2))], [node(1, free=0, with_placeholder=1, warm=1)])
    assert (tuple(steps.place), steps.stop) == (((CHAT, node(1).id),), {crashed.id: "crashed"})


def test_a_crashed_replica_starts_again_where_no_placeholder_is_warm() -> None:
    crashed = dataclasses.replace(replica(1, "backoff"), crashed=True)
    steps = plan([chat(1, crashed)], [node(1, free=4), node(2, pool=SLOW, free=0, with_placeholder=1, warm=1)])
    assert (tuple(steps.place), steps.stop) == ((), {})


def test_a_placeholder_takes_over_for_one_crashed_replica_only() -> None:
    crashed = [dataclasses.replace(replica(number, "backoff"), crashed=True) for number in (1, 2)]
    steps = plan([chat(2, *crashed)], [node(1, free=1, with_placeholder=1, warm=1)])
    assert (tuple(steps.place), steps.stop) == (((CHAT, node(1).id),), {crashed[0].id: "crashed"})


def test_the_replacement_of_a_drained_replica_waits_for_a_zygote_that_is_nearly_warm() -> None:
    drained = dataclasses.replace(replica(1), leaving=True)
    full = node(1, replicas=1, free=0, with_placeholder=1)
    warming = replace(full, warming={"simulated": 1})
    steps = plan([chat(1, drained)], [warming])
    assert (tuple(steps.place), steps.stop) == ((), {})
    warm = plan([chat(1, drained)], [replace(full, warm={"simulated": 1})])
    assert (tuple(warm.place), warm.stop) == (((CHAT, full.id),), {})
    other = replace(full, warming={"vllm": 1})
    assert tuple(plan([chat(1, drained)], [other]).place) == ((CHAT, full.id),)


def test_only_a_replacement_waits_and_never_one_that_is_missing() -> None:
    drained = dataclasses.replace(replica(1), leaving=True)
    full = replace(node(1, replicas=1, free=0, with_placeholder=2), warming={"simulated": 2})
    assert len(plan([chat(2, drained)], [full]).place) == 1
    assert len(plan([chat(1)], [full]).place) == 1
    ending = dataclasses.replace(drained, state="starting")
    assert len(plan([chat(1, ending)], [full]).place) == 1


def test_the_next_pool_takes_over_when_the_first_has_no_node() -> None:
    assert tuple(plan([chat(1)], [node(3, pool=SLOW)]).place) == ((CHAT, node(3).id),)


def test_nothing_is_placed_without_a_node() -> None:
    assert tuple(plan([chat(2, replica(1, "lost"))], []).place) == ()


def test_a_lost_replica_stays_wanted_until_its_replacement_has_a_place() -> None:
    lost = replica(1, "lost")
    assert plan([chat(1, lost)], []).stop == {}
    steps = plan([chat(1, lost)], [node(2)])
    assert tuple(steps.place) == ((CHAT, node(2).id),)
    assert steps.stop == {lost.id: "replaced"}


def test_a_lost_replica_that_others_replaced_is_given_up() -> None:
    lost = replica(1, "lost")
    assert plan([chat(1, lost, replica(2))], [node(2)]).stop == {lost.id: "replaced"}


def test_a_node_where_it_failed_lately_is_not_offered_again() -> None:
    failed = replica(1, "failed", on=1, recent=True)
    assert tuple(plan([chat(1, failed)], [node(1)]).place) == ()
    assert tuple(plan([chat(1, failed)], [node(1), node(2, replicas=9)]).place) == ((CHAT, node(2).id),)


def test_after_its_rest_a_failed_replica_is_settled_and_its_node_offered() -> None:
    failed = replica(1, "failed", on=1)
    steps = plan([chat(1, failed)], [node(1)])
    assert tuple(steps.place) == ((CHAT, node(1).id),)
    assert steps.stop == {failed.id: "settled"}


def test_surplus_replicas_go_idle_ones_first_then_from_the_last_pool_then_the_least_busy_then_the_newest() -> None:
    starting = replica(1, "starting")
    busy_slow = replica(2, pool=SLOW, requests=9)
    busy, idle, newest = replica(3, requests=5), replica(4), replica(5)
    everything = (starting, busy_slow, busy, idle, newest)
    stopped = [set(plan([chat(n, *everything)], [node(1)]).stop) for n in (4, 3, 2, 1, 0)]
    order = [starting.id, busy_slow.id, newest.id, idle.id, busy.id]
    assert stopped == [set(order[:count]) for count in (1, 2, 3, 4, 5)]


def test_a_prepared_replica_is_placed_whatever_room_the_first_pool_has() -> None:
    ask = replace(chat(3, replica(1), replica(2)), prepared={SLOW: 1})
    assert tuple(plan([ask], [node(1), node(3, pool=SLOW)]).place) == ((CHAT, node(3).id),)
    full = plan([ask], [node(1), node(3, pool=SLOW, free=0)])
    assert tuple(full.place) == ((CHAT, node(1).id),)


def test_prepared_replicas_are_given_up_last_but_not_kept_beyond_what_is_desired() -> None:
    serving, prepared = replica(1, requests=9), replica(2, pool=SLOW)
    stopped = [set(plan([replace(chat(n, serving, prepared), prepared={SLOW: 1})], [node(1)]).stop) for n in (2, 1, 0)]
    assert stopped == [set(), {serving.id}, {serving.id, prepared.id}]


def test_a_warm_placeholder_decides_then_free_slots_before_those_of_placeholders() -> None:
    warm = node(1, replicas=9, free=0, with_placeholder=1, warm=1)
    crowded = node(2, replicas=5, free=1, with_placeholder=3)
    evicting = node(3, free=0, with_placeholder=4)
    steps = plan([chat(4)], [evicting, crowded, warm])
    assert [node_id for _, node_id in tuple(steps.place)] == [warm.id, crowded.id, evicting.id, evicting.id]


def test_a_gang_is_placed_only_where_all_its_slots_are() -> None:
    gang = replace(chat(2), slots_per_replica=3)
    assert tuple(plan([gang], [node(1, free=2), node(2, free=1, with_placeholder=4)]).place) == ((CHAT, node(2).id),)


def test_a_fleet_that_is_as_desired_is_left_alone() -> None:
    steps = plan([chat(2, replica(1), replica(2, "backoff"))], [node(1)])
    assert (tuple(steps.place), steps.stop) == ((), {})
