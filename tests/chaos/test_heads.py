"""The short form of `make chaos CHAOS=--heads`: both servers fail over and a head dies, and everything agrees."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.chaos import heads
from tests.chaos.run import run

KINDS = ("fail PostgreSQL over", "kill the second head", "fail Redis over", "kill the first head and its engines")


@pytest.mark.long
@pytest.mark.journey
@pytest.mark.timeout(900)
def test_two_heads_lose_nothing_when_one_dies_or_their_servers_fail_over() -> None:
    faults = [(heads.BY_KIND[kind], Random(kind)) for kind in KINDS]
    with heads.running() as world:
        report = asyncio.run(run(world, faults, 0, print, quiet_seconds=2))
    assert report.differences == []
    assert heads.leftovers(world) == []
    assert [each.kind for each in report.struck] == list(KINDS)
    assert report.requests > len(KINDS)


def test_a_seed_draws_the_same_faults_of_heads_each_time() -> None:
    def kinds(seed: int) -> list[tuple[str, float]]:
        return [(fault.kind, random.random()) for fault, random in heads.drawn(seed, 50)]

    assert kinds(1) == kinds(1)
    assert {kind for kind, _ in kinds(1)} == set(heads.BY_KIND)
