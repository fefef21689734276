"""A client that leaves stops the work of a real engine, streamed or not, and pays for what it had of it."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.journey.instance import MODEL, Instance, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

#: Far more than a client waits for here.
MAX_TOKENS = 4000


def ask(instance: Instance, *, stream: bool) -> http.client.HTTPConnection:
    """Send a request for a long answer, and return its connection with nothing read of it."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{uuid4()} Tell me a long story of modules and classes."}],
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "stream": stream,
    }
    base = urlsplit(instance.api_base)
    connection = http.client.HTTPConnection(str(base.hostname), base.port, timeout=60)
    headers = {"content-type": "application/json", "authorization": f"Bearer {instance.key('globex')}"}
    connection.request("POST", f"{base.path}/chat/completions", json.dumps(body), headers)
    return connection


def total(instance: Instance, name: str) -> float:
    """Return the sum of a metric over all engines."""
    return sum(engine.counter(name) for engine in instance.engines())


def running(instance: Instance) -> float:
    """Return how many requests the engines work on."""
    return total(instance, "vllm:num_requests_running")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_stops_the_engine(instance: Instance, stream: bool) -> None:
    wait_for(lambda: running(instance) == 0, "idle engines", seconds=60)
    written = total(instance, "vllm:generation_tokens_total")
    connection = ask(instance, stream=stream)
    request_id = None
    if stream:
        answer = connection.getresponse()
        request_id = answer.headers["x-request-id"]
        while not answer.readline().startswith(b"data:"):
            pass
    wait_for(lambda: running(instance) == 1, "a running request", seconds=60)
    connection.close()
    wait_for(lambda: running(instance) == 0, "an engine that stopped", seconds=60)
    assert total(instance, "vllm:generation_tokens_total") - written < MAX_TOKENS
    if request_id is not None:
        row = instance.usage("globex", request_id)
        assert (row["state"], row["tokens_source"]) == ("client_gone", "streamed")
        assert 1 <= row["completion_tokens"] < MAX_TOKENS
