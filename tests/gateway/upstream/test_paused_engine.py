"""An engine process that is stopped, or whose clients leave: what clients get, and what the engine works on."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.replica import Replica, running
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.tenants import DOORS, MODEL, Gateway, in_database, until

#: At 100 tokens a second this takes longer than any wait of these tests.
LONG: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "max_tokens": 7000,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Replica]:
    """Start an engine that writes slowly and takes every key, as each test has replicas with keys of their own."""
    with running("simulated", "--decode-tokens-per-second", "100", served_name=MODEL, api_key="") as started:
        yield started


@pytest.fixture
def engine_timeout_seconds() -> float:
    """Wait for a stopped engine, and not for one on a busy machine."""
    return 3.0


@contextmanager
def stopped(engine: Replica) -> Iterator[None]:
    """Let the engine's processes do nothing, with all their connections open."""
    os.killpg(engine.group, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(engine.group, signal.SIGCONT)


async def serve(gateway: Gateway, *ports: int) -> None:
    """Let the model's replicas be at these ports."""
    await in_database(lambda: tenants.place(gateway.world, ports))
    view = gateway.runtime.feed
    await until(
        lambda: (
            sorted(str(port) for port in ports)
            == sorted(each.base_url.rpartition(":")[2] for each in view.snapshot.endpoints[MODEL])
        )
    )


async def requests_running(engine: Replica) -> float:
    """Return how many requests the engine works on, by its metrics."""

    def ask() -> float:
        asked = urllib.request.Request(
            f"{engine.spec.base_url}/metrics", headers={"authorization": f"Bearer {engine.spec.api_key}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running"))

    return await asyncio.to_thread(ask)


async def works_on(engine: Replica, requests: int) -> None:
    """Wait until the engine works on this many ``requests``. Raises TimeoutError."""
    for _ in range(1500):
        if await requests_running(engine) == requests:
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_silent_engines_request_is_charged_and_sent_to_no_other(
    gateway: Gateway, engine: Replica, stream: bool
) -> None:
    await serve(gateway, engine.spec.port, engine.spec.port)
    with stopped(engine):
        got = await gateway.ask({**LONG, "n": 2, "max_tokens": 20, "stream": stream})
    assert (got.status, got.error["code"], got.answer_headers["x-should-retry"]) == (504, "engine_timeout", "false")
    (start,) = gateway.starts()
    (end,) = gateway.ends()
    # Ten tokens for each of three seconds and each choice, at most what was allowed; of a stream none was seen.
    assert (end.state, end.tokens_source, end.completion_tokens) == ("engine_error", "estimated", 0 if stream else 40)
    assert end.prompt_tokens + end.cached_prompt_tokens == start.prompt_tokens_estimate > 0
    assert gateway.loads() == [0, 0]
    await works_on(engine, 0)


async def test_an_engine_that_stops_in_its_answer_is_told_of_and_what_was_sent_is_charged(
    gateway: Gateway, engine: Replica
) -> None:
    await serve(gateway, engine.spec.port, engine.spec.port)
    exchange = gateway.exchange({**LONG, "stream": True})
    work = asyncio.ensure_future(exchange.run())
    await until(lambda: exchange.body.count(b"data:") > 3)
    with stopped(engine):
        await work
    assert exchange.events[-1].startswith(b"event: error\n")
    assert b'"engine_failed_mid_stream"' in exchange.events[-1]
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source) == ("engine_error", "streamed")
    assert end.completion_tokens == exchange.body.count(b'"content":"') - exchange.body.count(b'"content":""')
    await works_on(engine, 0)


@pytest.mark.parametrize("engine_timeout_seconds", [60.0])  # no engine is stopped here
@pytest.mark.parametrize("gateway", DOORS, indirect=True)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_ends_the_engines_work(gateway: Gateway, engine: Replica, stream: bool) -> None:
    await serve(gateway, engine.spec.port, engine.spec.port)
    exchange = gateway.exchange({**LONG, "stream": stream})
    work = asyncio.ensure_future(exchange.run())
    await works_on(engine, 1)
    exchange.disconnect.set()
    await works_on(engine, 0)
    await work
    await until(gateway.ends)  # the view lets go of its answer on another loop
    assert [end.state for end in gateway.ends()] == ["client_gone"]
