"""Scaling down under open streams: none is cut, none is added, and the engine ends by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import openai
import pytest

from tests.journey.instance import MODEL, Instance, wait_for
from tests.journey.test_placeholders import replicas

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

STREAMS = 20
TOKENS = 1200


@pytest.fixture
def two(instance: Instance) -> Iterator[set[str]]:
    """Give the ids of two ready replicas, and have two again afterwards."""
    wait_for(lambda: len(replicas(instance)) == 2, "two ready replicas", seconds=180)
    yield {row["id"] for row in replicas(instance)}
    assert instance.operator(f"/fleet/deployments/{MODEL}/scale", {"replicas": 2}).status == 200
    wait_for(lambda: len(replicas(instance)) == 2, "two ready replicas again", seconds=180)


def streamed(sdk: openai.OpenAI) -> tuple[str, int, str | None]:
    """Return the request id of one long stream, its events with content, and how it finished."""
    with sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"{uuid4()} Tell me a story."}],
        max_tokens=TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"cache-control": "no-store"},
    ) as stream:
        finished = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices]
        return stream.response.headers["x-request-id"], len(finished), finished[-1]


@pytest.mark.timeout(500)
def test_scaling_down_cuts_no_stream_and_sends_no_new_one(instance: Instance, two: set[str]) -> None:
    with ThreadPoolExecutor(STREAMS) as clients:
        sdk = instance.sdk("acme")
        open_streams = [clients.submit(streamed, sdk) for _ in range(STREAMS)]

        def all_run() -> bool:
            return sum(engine.counter("vllm:num_requests_running") for engine in instance.engines()) == STREAMS

        wait_for(all_run, "all streams on the engines", seconds=60)
        assert instance.operator(f"/fleet/deployments/{MODEL}/scale", {"replicas": 1}).status == 200
        wait_for(lambda: len(replicas(instance)) == 1, "one replica to drain")
        (left,) = (row["id"] for row in replicas(instance))
        later = instance.chat("acme", f"{uuid4()} And now?", headers={"cache-control": "no-store"})
        ended = [stream.result(timeout=240) for stream in open_streams]

    assert [reason for _, _, reason in ended] == ["length"] * STREAMS
    assert {instance.usage("acme", request_id)["replica_id"] for request_id, _, _ in ended} == two
    assert instance.usage("acme", later.headers["x-request-id"])["replica_id"] == left
    (drained,) = two - {left}

    def over() -> list[str]:
        events = json.loads(instance.celery("fleet", "events", "--last", "200", "--json").stdout)
        return [
            row["reason"] for row in events if row["to_state"] == "stopped" and row["replica"].endswith(drained[-6:])
        ]

    (reason,) = wait_for(over, "the drained replica's end", seconds=120)
    assert reason == "its engine ended by itself"
