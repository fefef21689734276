"""The simulated engines compute what they must, and every policy answers every request, the same for the same seed."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from benchmarks.routing import workloads
from benchmarks.routing.__main__ import POLICIES
from benchmarks.routing.measures import measure
from benchmarks.routing.simulator import Request, Simulation, engines
from benchmarks.routing.workload import Workload
from workers.simulated.engine.block_pool import BlockPool
from workers.simulated.engine.scheduler import Scheduled, Scheduler

BLOCK = 32


def small() -> Workload:
    """Return the first 25 sessions of agents."""
    whole = workloads.agents(0.5, Random(1))
    return dataclasses.replace(whole, conversations=whole.conversations[:25])


def keys(names: str) -> tuple[bytes, ...]:
    """Return a block's key for each letter."""
    return tuple(name.encode() for name in names)


def run(policy: str, gateways: int = 1) -> tuple[list[Request], object]:
    """Return the requests of a run with three engines, and what they show."""
    workload = small()
    fleet = engines(3, workload)
    requests = Simulation(workload, [POLICIES[policy](fleet) for _ in range(gateways)], fleet).run()
    return requests, measure(requests, fleet)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_request_is_answered_and_a_seed_gives_the_same_figures(policy: str) -> None:
    requests, shown = run(policy)
    assert len(requests) == sum(len(each.turns) for each in small().conversations)
    assert all(each.sent_at < each.first_token_at <= each.ended_at for each in requests)
    assert all(0 <= each.cached_tokens < each.turn.prompt_tokens for each in requests)
    assert run(policy)[1] == shown


def test_turns_follow_the_answer_before() -> None:
    requests, _ = run("hearth", gateways=2)
    ended: dict[int, float] = {}
    for request in requests:
        if request.number:
            assert request.sent_at == ended[id(request.conversation)] + request.turn.think_seconds
        ended[id(request.conversation)] = request.ended_at


def test_a_long_prompt_is_computed_in_chunks_beside_what_decodes() -> None:
    scheduler = Scheduler(BlockPool(1000), block_size=BLOCK, max_sequences=4, max_step_tokens=256)
    short, long = Scheduled(10, 50, ()), Scheduled(600, 1, ())
    scheduler.add(short)
    step = scheduler.next_step()
    assert step is not None
    assert (step.prompt_tokens, step.decoding) == (10, 0)
    assert scheduler.complete(step) == [short]
    scheduler.add(long)
    chunks = []
    while not long.emitted:
        step = scheduler.next_step()
        assert step is not None
        chunks.append((step.prompt_tokens, step.decoding))
        scheduler.complete(step)
    assert chunks == [(255, 1), (255, 1), (90, 1)]


def test_a_sequence_waits_for_blocks() -> None:
    scheduler = Scheduler(BlockPool(1 + 10), block_size=BLOCK, max_sequences=4, max_step_tokens=10_000)
    first, second = Scheduled(6 * BLOCK, 1, keys("abcdef")), Scheduled(7 * BLOCK, 1, keys("ghijklm"))
    scheduler.add(first)
    scheduler.add(second)
    step = scheduler.next_step()
    assert step is not None
    assert [each for each, _ in step.tokens] == [first]
    scheduler.complete(step)
    scheduler.remove(first)
    step = scheduler.next_step()
    assert step is not None
    assert [each for each, _ in step.tokens] == [second]


def test_a_sequence_finds_what_is_cached_but_for_its_last_token() -> None:
    scheduler = Scheduler(BlockPool(1 + 20), block_size=BLOCK, max_sequences=4, max_step_tokens=10_000)
    found = []
    for names in ("abcdef", "abcdeXY", "abcdeXY"):
        sequence = Scheduled(len(names) * BLOCK, 1, keys(names))
        scheduler.add(sequence)
        step = scheduler.next_step()
        assert step is not None
        scheduler.complete(step)
        scheduler.remove(sequence)
        found.append((sequence.cached_tokens // BLOCK, step.prompt_tokens // BLOCK))
    assert found == [(0, 6), (5, 2), (6, 1)]
