"""How requests to the replicas of a rollout go is counted, and known to the fleet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.fixtures.rollouts import counted, roll_out
from tests.gateway.fixtures.scripted_app import CHUNKS, events, hang_up, hello, saying, silence, streaming
from tests.gateway.fixtures.tenants import HELLO, STREAMED, Gateway, until
from workers.serving.rollout_policy import RolloutPolicy
from workers.serving.rollout_traffic import Traffic

pytestmark = [pytest.mark.django_db(transaction=True)]

SAMPLED = {**HELLO, "temperature": 1}
FAILS = saying({"error": {"message": "out of memory"}}, status=500)


@pytest.fixture
def engine_timeout_seconds() -> float:
    """Give silent engines up soon: nothing here depends on an engine that is slow by chance."""
    return 1.5


@pytest.mark.parametrize(
    ("body", "say", "status"),
    [
        (SAMPLED, FAILS, 502),
        (SAMPLED, saying({"error": {"message": "who are you"}}, status=401), 502),
        (SAMPLED, saying(b"{"), 502),
        (SAMPLED, silence, 504),
        (STREAMED, streaming(events(CHUNKS[:3], done=False), cut=True), 200),
        (STREAMED, streaming(events(CHUNKS[:3], done=False)), 200),
        (STREAMED, streaming([*events(CHUNKS[:3], done=False), b'data: {"error": {"message": "CUDA"}}\n\n']), 200),
    ],
    ids=["500", "401", "not valid", "silent", "cut", "ended early", "error event"],
)
async def test_what_an_engine_fails_is_counted_once(
    gateway: Gateway, body: dict[str, Any], say: Any, status: int
) -> None:
    rollout, _ = await roll_out(gateway, alone=True)
    gateway.let_all_say(say)
    assert (await gateway.ask(body)).status == status
    await counted(rollout, Traffic(requests=1, failures=1))
    gateway.let_all_say(hello)
    assert (await gateway.ask({**SAMPLED, "seed": 1})).status == 200
    await counted(rollout, Traffic(requests=2, failures=1))


async def test_answers_refusals_and_clients_that_leave_are_requests_without_a_failure(gateway: Gateway) -> None:
    rollout, _ = await roll_out(gateway, alone=True)
    assert (await gateway.ask(SAMPLED)).status == 200
    assert (await gateway.ask(STREAMED)).status == 200
    gateway.let_all_say(saying({"error": {"message": "bad top_k", "param": "top_k"}}, status=400))
    assert (await gateway.ask(SAMPLED)).status == 400
    gateway.let_all_say(streaming(events(CHUNKS[:3], done=False), then_wait=True))
    leaves = gateway.exchange({**STREAMED, "seed": 1})
    sent = asyncio.ensure_future(leaves.run())
    await until(lambda: len(gateway.engines[1].bodies) == 4)
    leaves.disconnect.set()
    await sent
    await counted(rollout, Traffic(requests=4))


async def test_streams_whose_first_token_is_late_are_slow(gateway: Gateway) -> None:
    async def late(request: Any, body: dict[str, Any]) -> Any:
        await asyncio.sleep(0.05)
        return await hello(request, body)

    rollout, _ = await roll_out(gateway, policy=RolloutPolicy(max_ttft_seconds=0.01), alone=True)
    gateway.let_all_say(late)
    assert (await gateway.ask(STREAMED)).status == 200
    assert (await gateway.ask(SAMPLED)).status == 200
    await counted(rollout, Traffic(requests=2, slow=1))


async def test_a_failure_counts_if_the_earlier_revision_answers_and_not_if_it_fails_too(gateway: Gateway) -> None:
    rollout, _ = await roll_out(gateway)
    gateway.engines[1].say = hang_up
    for seed in range(4):
        assert (await gateway.ask({**SAMPLED, "seed": seed})).status == 200
    assert len(gateway.engines[1].bodies) == 1  # then it is passed over
    await counted(rollout, Traffic(requests=1, failures=1))
    gateway.let_all_say(FAILS)
    assert (await gateway.ask({**SAMPLED, "seed": 9}, key=gateway.world.globex.secret)).status == 502
    await counted(rollout, Traffic(requests=2, failures=1))
