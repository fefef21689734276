"""The simulated engines compute what they must, and every policy answers every request, the same for the same seed."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from benchmarks.routing import fairness, hearth_policy, host_memory, workloads
from benchmarks.routing.__main__ import HEARTH, HEARTH_STRICT, HEARTHS, POLICIES, gateways
from benchmarks.routing.fair_policy import FairHearth, Unshared
from benchmarks.routing.hearth_policy import Hearth
from benchmarks.routing.measures import Measures, measure
from benchmarks.routing.simulator import HostMemory, Request, Restart, Simulation, engines
from benchmarks.routing.workload import Workload


def small() -> Workload:
    """Return the first 25 sessions of agents."""
    whole = workloads.agents(0.5, Random(1))
    return dataclasses.replace(whole, conversations=whole.conversations[:25])


def run(policy: str, processes: int = 1, hosts: int = 1) -> tuple[list[Request], Measures]:
    """Return the requests of a run with three engines, and what they show."""
    workload = small()
    fleet = engines(3, workload)
    requests = Simulation(workload, gateways(policy, fleet, processes, hosts), fleet).run()
    return requests, measure(requests, fleet)


@pytest.mark.parametrize("policy", sorted([*POLICIES, *HEARTHS]))
def test_every_request_is_answered_and_a_seed_gives_the_same_figures(policy: str) -> None:
    requests, shown = run(policy)
    assert len(requests) == sum(len(each.turns) for each in small().conversations)
    assert all(each.sent_at < each.first_token_at <= each.ended_at for each in requests)
    assert all(0 <= each.cached_tokens < each.turn.prompt_tokens for each in requests)
    assert run(policy)[1] == shown


@pytest.mark.parametrize(("processes", "hosts"), [(1, 1), (4, 2)])
def test_strict_sessions_stay_where_others_move(processes: int, hosts: int) -> None:
    assert (run(HEARTH)[1].stay or 0) < 1.0
    assert run(HEARTH_STRICT, processes, hosts)[1].stay == 1.0


def test_behind_the_fair_queue_a_flood_waits_and_others_do_not() -> None:
    whole = workloads.flood(0.25, Random(1))
    begins = whole.conversations[180].at
    some = tuple(each for each in whole.conversations if begins - 1 < each.at < begins + 3)
    workload = dataclasses.replace(whole, conversations=some)
    shown = {}
    for policy in (Hearth, FairHearth):
        fleet = engines(3, workload)
        requests = Simulation(workload, hearth_policy.gateways(fleet, 1, 1, policy), fleet).run()
        assert len(requests) == len(some)
        quiet = [each for each in requests if each.conversation.tenant]
        shown[policy] = max(each.ttft for each in quiet)
    assert shown[FairHearth] < shown[Hearth] / 2


@pytest.mark.long
def test_through_more_processes_a_tenant_gets_no_more() -> None:
    whole = workloads.two_floods(0.25, Random(1))
    workload = dataclasses.replace(whole, conversations=whole.conversations[:600])
    shares = {}
    for kind in (FairHearth, Unshared):
        fleet = engines(2, workload)
        requests = Simulation(workload, hearth_policy.gateways(fleet, 4, 1, kind), fleet).run()
        shares[kind] = fairness.share(requests)
    assert shares[FairHearth] == pytest.approx(0.5, abs=0.02)
    assert shares[Unshared] < 0.4


@pytest.mark.long
def test_with_host_memory_evicted_prompts_come_back_and_the_cost_counts_it() -> None:
    shown = {
        policy: host_memory.simulate(
            host_memory.Task(
                policy=policy,
                host=HostMemory(factor=4.0, tokens_per_second=190_000),
                share=0.2,
                load=0.35,
                gateways=processes,
                hosts=processes,
                seed=1,
            )
        )
        for policy, processes in (("hearth", 2), ("host memory as evicted", 1), ("least-loaded", 1))
    }
    measured, reloaded = shown["hearth"]
    assert reloaded > 0.05
    assert measured.hit > 0.7
    assert measured.p90 < shown["least-loaded"][0].p90


def test_turns_follow_the_answer_before() -> None:
    requests, _ = run(HEARTH, processes=4, hosts=2)
    ended: dict[int, float] = {}
    for request in requests:
        if request.number:
            assert request.sent_at == ended[id(request.conversation)] + request.turn.think_seconds
        ended[id(request.conversation)] = request.ended_at


@pytest.mark.parametrize("policy", sorted([*POLICIES.keys() - {"round-robin"}, HEARTH]))
def test_a_replica_that_restarts_gets_nothing_and_then_begins_with_an_empty_cache(policy: str) -> None:
    workload = small()
    fleet = engines(3, workload)
    restart = Restart(replica=1, at=5.0, back_at=12.0)
    simulation = Simulation(workload, gateways(policy, fleet, 1, 1), fleet, restart=restart)
    requests = simulation.run()
    assert len(requests) == sum(len(each.turns) for each in workload.conversations)
    assert simulation.back_at is not None
    assert simulation.back_at >= 12.0
    assert not [each for each in requests if each.replica == 1 and 5.0 <= each.sent_at < simulation.back_at]
    after = [each for each in requests if each.replica == 1 and each.sent_at >= simulation.back_at]
    assert not after or after[0].cached_tokens == 0
    if policy == HEARTH:
        assert after
