"""Engines that only certificates reach: chats, deferred requests, metrics and the audit of isolation."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journey.conftest import running
from tests.journey.instance import Instance, Reply, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.long, pytest.mark.timeout(600)]

ADDRESS = "127.0.0.2"
PAIRS = 10


@pytest.fixture(scope="module")
def remote() -> Iterator[Instance]:
    """An instance whose engines speak TLS."""
    options = ("--engine", "simulated", "--replicas", "2")
    with running(*options, HEARTH_ENGINE_TLS="always", HEARTH_NODE_ADDRESS=ADDRESS) as found:
        yield found


def test_a_chat_and_a_deferred_request_are_answered_by_engines_that_refuse_plain_http(remote: Instance) -> None:
    for engine in remote.engines():
        with socket.create_connection((ADDRESS, engine.port), timeout=10) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"HTTP/1.1 200" not in plain.recv(1024)
    assert remote.chat("acme", "Hello").status == 200
    accepted = remote.chat("acme", "Later, please.", headers={"prefer": "respond-async"})
    assert accepted.status == 202

    def polled() -> Reply | None:
        answer = remote.call(f"/requests/{accepted.json()['id']}", remote.key("acme"))
        return None if answer.status == 202 else answer

    answer = wait_for(polled, "the answer", seconds=120)
    assert answer.json()["choices"][0]["message"]["content"] is not None


def test_the_agents_page_has_what_its_engines_do(remote: Instance) -> None:
    pages = "\n".join(remote.metrics().values())
    assert 'hearth_replica_running_requests{deployment="hearth-tiny"' in pages
    assert "hearth_node_certificate_life_seconds" in pages


def test_an_audit_of_isolation_runs_through_certificates(remote: Instance, tmp_path: Path) -> None:
    """What the times say of so few pairs is left to chance."""
    measured = tmp_path / "audit.json"
    ran = remote.hearth("audit-isolation", "--pairs", str(PAIRS), "--prefix-words", "60", "--json", str(measured))
    assert measured.is_file(), ran.stderr
    document = json.loads(measured.read_text())
    assert [check["name"] for check in document["checks"] if not check["holds"]] == []
    assert len(document["checks"]) == 7
    assert len(document["caches"]["prefix"]["audit_pairs"]) == PAIRS
