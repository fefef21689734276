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
TOKENS = 2000


@pytest.fixture
def two(instance: Instance) -> Iterator[set[str]]:
    """Give the ids of two ready replicas, and have two again afterwards."""
    wait_for(lambda: len(replicas(instance)) == 2, "two ready replicas", seconds=180)
    yield {row["id"] for row in replicas(instance)}
    assert instance.operator(f"/fleet/deployments/{MODEL}/scale", {"replicas": 2}).status == 200
    wait_for(lambda: len(replicas(instance)) == 2, "two ready replicas again", seconds=180)


def streamed(sdk: openai.OpenAI, begun: list[str]) -> tuple[str, int, str | None]:
    """Return the id of one long stream, its events with content, and how it finished. ``begun`` gets the id early."""
    with sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"{uuid4()} Tell me a story."}],
        max_tokens=TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"cache-control": "no-store"},
    ) as stream:
        request_id = stream.response.headers["x-request-id"]
        finished: list[str | None] = []
        for chunk in stream:
            if chunk.choices:
                if not finished:
                    begun.append(request_id)
                finished.append(chunk.choices[0].finish_reason)
        return request_id, len(finished), finished[-1]


@pytest.mark.long
@pytest.mark.timeout(700)
def test_scaling_down_cuts_no_stream_and_sends_no_new_one(instance: Instance, two: set[str]) -> None:
    with ThreadPoolExecutor(STREAMS) as clients:
        sdk = instance.sdk("acme")
        begun: list[str] = []
        open_streams = [clients.submit(streamed, sdk, begun) for _ in range(STREAMS)]
        wait_for(lambda: len(begun) == STREAMS, "the first words of all streams", seconds=120)
        assert instance.operator(f"/fleet/deployments/{MODEL}/scale", {"replicas": 1}).status == 200
        wait_for(lambda: len(replicas(instance)) == 1, "one replica to drain")
        assert not all(stream.done() for stream in open_streams)
        (left,) = (row["id"] for row in replicas(instance))
        later = instance.chat("acme", f"{uuid4()} And now?", headers={"cache-control": "no-store"})
        ended = [stream.result(timeout=300) for stream in open_streams]

    assert [reason for _, _, reason in ended] == ["length"] * STREAMS
    assert {instance.replica_of("acme", request_id) for request_id, _, _ in ended} == two
    assert instance.replica_of("acme", later.headers["x-request-id"]) == left
    (drained,) = two - {left}

    def over() -> list[str]:
        events = json.loads(instance.celery("fleet", "events", "--last", "200", "--json").stdout)
        return [
            row["reason"] for row in events if row["to_state"] == "stopped" and row["replica"].endswith(drained[-6:])
        ]

    (reason,) = wait_for(over, "the drained replica's end", seconds=120)
    assert reason == "its engine ended after SIGTERM"
