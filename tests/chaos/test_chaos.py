"""The short form of `make chaos`: a few faults on one instance, and everything agrees afterwards."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.chaos import page
from tests.chaos.clients import Outcome, outage_seconds
from tests.chaos.faults import BY_KIND, FAULTS, drawn
from tests.chaos.run import Report, Struck, run
from tests.chaos.world import leftovers, running

#: What clients, limits and answers hang on.
FEW = ("kill gateway", "kill redis", "kill engine")
MORE = (*FEW, "kill drain", "reset database connections", "kill inference")


@pytest.mark.long
@pytest.mark.journey
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kinds", [FEW, MORE], ids=["few", "more"])
def test_what_clients_saw_is_what_is_stored_after_faults(kinds: tuple[str, ...]) -> None:
    faults = [(BY_KIND[kind], Random(kind)) for kind in kinds]
    with running() as world:
        report = asyncio.run(run(world, faults, 0, print, quiet_seconds=2))
    assert report.differences == []
    assert leftovers(world) == []
    assert [each.kind for each in report.struck] == list(kinds)
    assert report.requests > len(kinds)


def test_a_seed_draws_the_same_faults_each_time() -> None:
    def kinds(seed: int) -> list[tuple[str, float]]:
        return [(fault.kind, random.random()) for fault, random in drawn(seed, 50, small_disk=True, moving_clock=True)]

    assert kinds(1) == kinds(1)
    assert kinds(1) != kinds(2)


def test_faults_that_the_machine_cannot_have_are_not_drawn() -> None:
    kinds = {fault.kind for fault, _ in drawn(1, 500, small_disk=False, moving_clock=False)}
    assert kinds == {each.kind for each in FAULTS if not each.needs_small_disk and not each.needs_moving_clock}


def test_an_outage_ends_with_the_first_of_eight_answers_in_a_row() -> None:
    def outcome(began: float, status: int) -> Outcome:
        answered = status == 200
        return Outcome(
            client_id="", kind="whole", tenant=0, base=0, began=began, ended=began + 0.1, status=status, whole=answered
        )

    failed = [outcome(1.0, 503), outcome(1.5, 200), outcome(2.0, 503)]
    answered = [outcome(3.0 + number, 200) for number in range(8)]
    assert outage_seconds([*failed, *answered], 1.0) == 2.0
    assert outage_seconds(answered, 1.0) == 0.0
    assert outage_seconds([*failed, *answered[:7]], 1.0) == float("inf")


def test_the_table_sums_seeds() -> None:
    struck = {
        "requests": 10,
        "failed": 1,
        "outage_seconds": 0.5,
        "ready_seconds": 2.0,
        "told": {},
        "kind": "kill drain",
    }
    report = {"seed": 1, "commit": "abc", "requests": 100, "differences": [], "struck": [struck, struck]}
    lines = page.table([report, report | {"seed": 2}]).splitlines()
    assert lines[0].startswith("4 faults, 200 requests, 0 differences; seeds 1, 2;")
    assert lines[-1] == "| kill drain | 4 | 40 | 4 (10.0 %) | 0.5 s | 0.5 s | 2.0 s |"
    assert set(struck) <= set(Struck.__dataclass_fields__)
    assert {"struck", "differences", "requests", "seed"} <= set(Report.__dataclass_fields__)
