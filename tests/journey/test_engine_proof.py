"""The counters of a real vLLM equal usage by purpose, request by request, whatever mix of requests it served."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.journey.conftest import running
from tests.journey.instance import MODEL, Instance, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.real_engine, pytest.mark.long, pytest.mark.timeout(1200)]

NO_CACHE = {"cache-control": "no-store"}
#: Long enough for whole blocks of the prefix cache.
PREFIX = "Modules have names. Classes have methods. " * 40


@pytest.fixture(scope="module")
def alone() -> Iterator[Instance]:
    """An instance with one real vLLM replica, which this test starts and stops."""
    with running("--engine", "vllm", "--replicas", "1", "--placeholders", "0") as found:
        yield found


def scale(instance: Instance, replicas: int) -> None:
    answer = instance.operator(f"/fleet/deployments/{MODEL}/scale", {"replicas": replicas})
    assert answer.status == 200, answer


def boots(instance: Instance) -> list[dict[str, Any]]:
    """Compare, and return the engines that have ended and agree, the newest first: the drain may need a moment."""
    compared = instance.hearth("reconcile", "--all", "--settle", "0", "--json")
    found: list[dict[str, Any]] = json.loads(compared.stdout)["boots"]
    return [each for each in found if each["ended_at"] and each["state"] not in {"settling", "gap"}]


def stopped(instance: Instance) -> dict[str, Any]:
    """Stop the replica, and return the result of its engine once it has ended."""
    before = len(boots(instance))
    scale(instance, 0)
    return wait_for(lambda: found[0] if len(found := boots(instance)) > before else None, "its end", seconds=300)


def stream(instance: Instance, **fields: Any) -> None:
    """Read a stream to its end."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{uuid4()} Go on."}], "stream": True, **fields}
    base = urlsplit(instance.api_base)
    link = http.client.HTTPConnection(str(base.hostname), base.port, timeout=120)
    headers = {"content-type": "application/json", "authorization": f"Bearer {instance.key('globex')}", **NO_CACHE}
    link.request("POST", f"{base.path}/chat/completions", json.dumps(body), headers)
    answer = link.getresponse()
    assert answer.status == 200
    answer.read()
    link.close()


def cut(instance: Instance) -> None:
    """Leave a stream after its first bytes; the engine then ends the request."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{uuid4()} Go on."}], "stream": True}
    base = urlsplit(instance.api_base)
    with socket.create_connection((str(base.hostname), base.port or 80), timeout=300) as link:
        content = json.dumps({**body, "max_tokens": 400, "ignore_eos": True}).encode()
        head = (
            f"POST {base.path}/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {instance.key('globex')}\r\ncache-control: no-store\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        link.sendall(head.encode() + content)
        received = b""
        while b"data: {" not in received:
            piece = link.recv(4096)
            assert piece, received
            received += piece
    assert received.startswith(b"HTTP/1.1 200")


def mix(instance: Instance) -> None:
    """Send what tenants send: whole, streamed, several choices, warm prefixes, repeats, refused, many at once."""
    warm = [instance.chat("acme", f"{PREFIX} {each}", headers=NO_CACHE) for each in ("One.", "Two.", "Three.")]
    assert [each.status for each in warm] == [200] * 3
    assert instance.chat("acme", f"{uuid4()} Hello.", n=3, temperature=1, headers=NO_CACHE).status == 200
    assert instance.chat("acme", "Hello.", temperature=-1, headers=NO_CACHE).status == 400
    same = f"{uuid4()} The same again."
    repeated = [instance.chat("acme", same, temperature=0) for _ in range(2)]
    assert [each.headers["x-cache"] for each in repeated] == ["miss", "hit"]
    stream(instance, max_tokens=40)
    with ThreadPoolExecutor(8) as pool:
        sent = [
            pool.submit(instance.chat, "globex", f"{uuid4()} Count.", max_tokens=5 + each, headers=NO_CACHE)
            for each in range(16)
        ]
        assert {each.result().status for each in sent} == {200}


def test_an_engine_that_ends_in_order_counted_what_usage_has_by_purpose(alone: Instance) -> None:
    mix(alone)
    found = stopped(alone)
    assert (found["state"], found["end"], found["note"]) == ("equal", "orderly", ""), found
    assert found["used_tokens"] == found["counted_tokens"] > 0
    assert set(found["by_purpose"]) == {"tenant", "canary"}


def test_streams_that_clients_leave_are_within_what_the_engine_counted(alone: Instance) -> None:
    scale(alone, 1)
    for _ in range(4):
        cut(alone)
    assert alone.chat("acme", f"{uuid4()} Hello.", headers=NO_CACHE).status == 200
    found = stopped(alone)
    assert (found["state"], found["end"], found["gap_tokens"]) == ("bounded", "orderly", 0), found
    # One may end before the gateway sees that its client has left.
    assert 1 <= found["cut_requests"] <= 4, found
    assert found["used_tokens"] + found["cut_tokens"] <= found["counted_tokens"], found
    assert 0 <= found["unattributed_tokens"] <= found["allowed_tokens"], found
    assert found["used_tokens"] > 0, found
