"""Two routing policies share a deployment's conversations for a while, and usage rows say what each of them did."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from billing.drain.drain import Drain
from billing.reports import routing_comparison as reports
from billing.reports.routing_comparison import Report
from catalogue import routing_policy
from catalogue.routing_policy import Comparison
from tenants.ids import ReplicaId
from tests.engines.replica import running
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.tenants import MODEL, Gateway, in_database, until
from tests.tenants.customers import OPERATOR
from workers.fleet import routing_comparison
from workers.serving import engine_keys

pytestmark = [pytest.mark.django_db(transaction=True)]

CONVERSATIONS = 24
RULES = {"role": "system", "content": "Be brief and friendly. " * 20}


async def serve_by_simulated_engines(gateway: Gateway, stack: ExitStack) -> None:
    """Let two simulated engines run the replicas until the stack ends."""
    ports = []
    for row in gateway.world.replicas:
        key = engine_keys.derive(ReplicaId(row.id), "")
        engine = running("simulated", served_name=MODEL, api_key=key, engine_args=())
        ports.append((await asyncio.to_thread(stack.enter_context, engine)).spec.port)
    await in_database(lambda: tenants.place(gateway.world, ports))
    addresses = {f"http://127.0.0.1:{port}" for port in ports}
    await until(lambda: {each.base_url for each in gateway.runtime.feed.snapshot.endpoints[MODEL]} == addresses)


async def talk(gateway: Gateway, number: int) -> list[str]:
    """Ask twice in one conversation, and return the policies that decided."""
    said: list[dict[str, Any]] = [RULES, {"role": "user", "content": f"Question {number}?"}]
    decided = []
    for turn in range(2):
        body = {"model": MODEL, "messages": said, "max_tokens": 4, "temperature": 1, "stream": bool(turn)}
        headers = (await gateway.ask(body)).answer_headers
        decided.append(headers["x-route"].rpartition("policy=")[2])
        said += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"And {number}?"}]
    return decided


def drained(gateway: Gateway, comparison: Comparison) -> Report:
    """Store what the log holds, and return the report."""
    drain = Drain(gateway.wal, "here")
    try:
        while drain.step():
            pass
    finally:
        drain.close()
    return reports.of(MODEL, comparison)


@pytest.mark.usefixtures("emptied")
async def test_each_conversation_stays_with_one_policy_until_the_comparison_ends(gateway: Gateway) -> None:
    def known() -> Comparison | None:
        return gateway.runtime.feed.snapshot.endpoints[MODEL][0].routing.comparison

    against = routing_policy.parse("round-robin")
    with ExitStack() as stack:
        await serve_by_simulated_engines(gateway, stack)
        begun = await in_database(
            lambda: routing_comparison.start(OPERATOR, MODEL, None, against, share=0.5, minutes=60)
        )
        await until(lambda: known() == begun)
        decided = [await talk(gateway, number) for number in range(CONVERSATIONS)]
        ended = await in_database(lambda: routing_comparison.stop(OPERATOR, MODEL))
        await until(lambda: known() == ended)
        assert await talk(gateway, CONVERSATIONS) == ["expected-seconds"] * 2
    by_policy = Counter(first for first, second in decided if first == second)
    assert by_policy.total() == CONVERSATIONS
    assert set(by_policy) == {"expected-seconds", "round-robin"}

    ends = gateway.ends()
    assert [end.routing_split for end in ends[2 * CONVERSATIONS :]] == ["", ""]
    report = await in_database(lambda: drained(gateway, ended))
    for letter, arm in (("A", report.a), ("B", report.b)):
        own = [end for end in ends if f"-{letter}-" in end.routing_split]
        assert (arm.requests, arm.failed) == (2 * by_policy[arm.policy], 0) == (len(own), 0)
        assert arm.groups == len({end.routing_split for end in own})
        cached, computed = sum(end.cached_prompt_tokens for end in own), sum(end.prompt_tokens for end in own)
        hit_rate, ttft = arm.metrics["hit_rate"], arm.metrics["ttft_p50_ms"]
        assert hit_rate is not None and hit_rate.value == cached / (cached + computed) > 0
        times = sorted(end.ttft_ms for end in own if end.ttft_ms is not None)
        assert ttft is not None
        assert ttft.value == pytest.approx(times[(len(times) - 1) // 2], rel=0.011)  # to a step of 1 %
