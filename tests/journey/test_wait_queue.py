"""A model without a replica, at zero or because its only one died, meets a crowd: who is answered, and who is not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.journey import load
from tests.journey.instance import MODEL, Instance, wait_for
from tests.journey.load import Answer

pytestmark = pytest.mark.journey

BURST = 200
#: ``queue_requests`` of a tenant's policy, and requests beyond it.
CAP, MORE = 256, 20
CLIENTS = 6


@pytest.fixture
def asleep(simulated: Instance) -> Iterator[Instance]:
    """Give the instance without a replica, and a deployment that may have one."""
    scale(simulated, {"replicas": 0})
    wait_for(lambda: not replicas(simulated), "no replica", seconds=90)
    scale(simulated, {"min_replicas": 0, "max_replicas": 1})
    yield simulated
    for node in nodes(simulated):
        assert simulated.operator(f"/fleet/nodes/{node}/uncordon", method="POST").status == 200


def scale(instance: Instance, body: dict[str, int]) -> None:
    """Set how many replicas the model may have."""
    assert instance.operator(f"/fleet/deployments/{MODEL}/scale", body).status == 200


def replicas(instance: Instance) -> list[dict[str, Any]]:
    """Return the replicas that have not ended, as operators see them."""
    deployments = instance.operator("/fleet").json()["deployments"]
    return [row for each in deployments for row in each["replicas"] if row["state"] not in {"stopped", "lost"}]


def nodes(instance: Instance) -> list[str]:
    """Return the names of the nodes."""
    return [str(node["name"]) for pool in instance.operator("/fleet").json()["pools"] for node in pool["nodes"]]


def states(instance: Instance) -> list[str]:
    """Return the states of those replicas."""
    return [str(replica["state"]) for replica in replicas(instance)]


def wakes(instance: Instance) -> list[str]:
    """Return the ids of the decisions to wake the model."""
    found = instance.operator("/fleet/decisions").json()["data"]
    return [str(row["id"]) for row in found if row["action"] == "wake"]


@pytest.mark.timeout(400)
def test_a_burst_from_zero_wakes_one_replica_and_is_answered_whole(asleep: Instance) -> None:
    before = set(wakes(asleep))
    answers = asyncio.run(load.burst(asleep, BURST))
    assert [answer for answer in answers if not answer.whole] == []
    assert len(set(wakes(asleep)) - before) == 1
    (replica,) = replicas(asleep)
    assert replica["state"] == "ready"
    assert asleep.usage("acme", answers[-1].request_id)["state"] == "complete"
    assert asleep.replica_of("acme", answers[-1].request_id) == replica["id"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_beyond_the_cap_a_burst_is_told_when_to_come_back_and_the_rest_is_answered(asleep: Instance) -> None:
    (node,) = nodes(asleep)
    assert asleep.operator(f"/fleet/nodes/{node}/cordon", method="POST").status == 200
    refused, answered = asyncio.run(_burst_while_nothing_starts(asleep, node))
    assert {(answer.status, "too_many_held" in answer.text) for answer in refused} == {(503, True)}
    assert all(int(answer.retry_after) >= 1 for answer in refused)
    assert [answer for answer in answered if not answer.whole] == []
    assert (len(refused), len(answered)) == (MORE, CAP)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_when_the_only_replica_dies_under_load_nobody_fails_who_had_no_byte_yet(asleep: Instance) -> None:
    scale(asleep, {"replicas": 1})
    wait_for(lambda: states(asleep) == ["ready"], "one ready replica", seconds=90)
    answers = asyncio.run(_load_over_a_death(asleep))
    assert [answer for answer in answers if not answer.whole and "engine_failed_mid_stream" not in answer.text] == []
    assert states(asleep) == ["ready"]


async def _load_over_a_death(instance: Instance) -> list[Answer]:
    """Kill the engine under load, and return all answers once its successor has given some."""
    async with load.steady_load(instance, clients=CLIENTS) as answers:
        await asyncio.to_thread(wait_for, lambda: len(answers) > CLIENTS, "answers", seconds=60)
        victim = {replica["id"]: replica["generation"] for replica in replicas(instance)}
        engine = next(engine for engine in instance.engines() if engine.replica_id in victim)
        os.killpg(engine.pid, signal.SIGKILL)

        def succeeded() -> bool:
            now = {row["id"]: row["generation"] for row in replicas(instance) if row["state"] == "ready"}
            return bool(now) and now != victim

        await asyncio.to_thread(wait_for, succeeded, "the successor", seconds=120)
        goal = len(answers) + 3 * CLIENTS
        await asyncio.to_thread(wait_for, lambda: len(answers) > goal, "answers of the successor", seconds=60)
    return answers


async def _burst_while_nothing_starts(instance: Instance, node: str) -> tuple[list[Answer], list[Answer]]:
    """Return the refusals, which come while no replica can start, and the answers that follow once one can."""
    async with load.client() as session:
        sent = [asyncio.ensure_future(load.ask(session, instance, streamed=n % 2 == 0)) for n in range(CAP + MORE)]
        refused = [await answer for _, answer in zip(range(MORE), asyncio.as_completed(sent), strict=False)]
        uncordon = f"/fleet/nodes/{node}/uncordon"
        assert (await asyncio.to_thread(instance.operator, uncordon, method="POST")).status == 200
        everything = await asyncio.gather(*sent)
    return refused, [answer for answer in everything if answer not in refused]
