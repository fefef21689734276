"""What a role's own listener says: real listeners, real loops, a real port that is taken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from billing.wal.disk_usage import DiskUsage
from hearth.health import http_listener
from hearth.health.bounded_call import BoundedCall
from hearth.health.checks import Check, Health, Heartbeat, Loop, recent, registry, usage_log
from tests.hearth.instances import wait_for
from tests.ports import free_ports

WELL = (Check("database", "ok"),)


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of a listener."""

    status: int
    content_type: str
    body: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


def ask(port: int, path: str) -> Said:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return Said(answer.status, answer.headers["content-type"], answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Said(error.code, error.headers["content-type"], error.read().decode())


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def begin(*loops: Loop, checks: Callable[[], tuple[Check, ...]] = lambda: WELL) -> int:
    """Start a listener and return its port. It ends with the test session, like a role's with the role."""
    port = free_ports(1)
    http_listener.start(Health(role="tested", loops=loops, checks=checks, registry=registry()), "127.0.0.1", port)
    wait_for(lambda: listens(port))
    return port


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that turns in a thread of its own."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def test_a_stuck_loop_fails_livez_and_a_free_one_passes_again(loop: asyncio.AbstractEventLoop) -> None:
    heartbeat, stuck = Heartbeat(), threading.Event()

    async def beat() -> None:
        while True:
            heartbeat.beat()
            await asyncio.sleep(0.01)

    port = begin(Loop("event loop", 1.0, heartbeat.age_seconds))
    beating = asyncio.run_coroutine_threadsafe(beat(), loop)
    try:
        wait_for(lambda: heartbeat.age_seconds() is not None)
        assert ask(port, "/livez").status == 200
        loop.call_soon_threadsafe(stuck.wait)
        wait_for(lambda: ask(port, "/livez").status == 503)
        said = ask(port, "/livez").document
        assert (said["role"], said["status"], said["loops"][0]["name"]) == ("tested", "wedged", "event loop")
        assert ask(port, "/readyz").status == 200
    finally:
        stuck.set()
    wait_for(lambda: ask(port, "/livez").status == 200)
    beating.cancel()


def test_slow_requests_hold_a_bounded_number_of_threads_and_keep_no_probe_out() -> None:
    port = begin()
    wait_for(lambda: listens(port))
    before = threading.active_count()
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * http_listener.MAX_REQUESTS)]
    try:
        for each in slow:
            with contextlib.suppress(OSError):  # the server has ended it for a later one
                each.sendall(b"GET /livez HTTP/1.1\r\n")
        assert ask(port, "/livez").status == 200
        assert slow[0].recv(1) == b"", "the oldest was ended"
        wait_for(lambda: threading.active_count() - before <= http_listener.MAX_REQUESTS)
    finally:
        for each in slow:
            each.close()


def test_a_loop_that_has_not_begun_or_rests_is_alive() -> None:
    heartbeat = Heartbeat()
    port = begin(Loop("worker", 0.0, heartbeat.age_seconds))
    assert ask(port, "/livez").document["loops"][0]["age_seconds"] is None
    heartbeat.beat()
    wait_for(lambda: ask(port, "/livez").status == 503)
    heartbeat.rest()
    assert ask(port, "/livez").status == 200


def test_readyz_names_what_is_missing_and_what_is_degraded() -> None:
    found = [Check("usage log", "missing", "no room"), Check("redis", "degraded"), Check("database", "ok")]
    port = begin(checks=lambda: tuple(found))
    said = ask(port, "/readyz")
    assert said.status == 503
    assert said.document["status"] == "not ready"
    assert (said.document["missing"], said.document["degraded"]) == (["usage log"], ["redis"])
    assert said.document["checks"][0] == {"name": "usage log", "state": "missing", "detail": "no room"}
    del found[0]
    assert (ask(port, "/readyz").status, ask(port, "/readyz").document["status"]) == (200, "degraded")


def test_a_role_about_which_nothing_can_be_told_is_not_ready() -> None:
    def broken() -> tuple[Check, ...]:
        raise RuntimeError("of all things")

    said = ask(begin(checks=broken), "/readyz")
    assert (said.status, said.document["missing"]) == (503, ["tested"])
    assert "of all things" not in said.body


def test_what_never_happened_or_long_ago_is_missing() -> None:
    assert recent("reconcile", None, limit_seconds=15, what="tick").state == "missing"
    assert recent("reconcile", 15.0, limit_seconds=15, what="tick").state == "ok"
    assert recent("reconcile", 15.1, limit_seconds=15, what="tick").state == "missing"


def test_a_usage_log_is_told_of_from_a_quarter_of_its_cap_on() -> None:
    told = {share: usage_log(DiskUsage(bytes=share << 20, max_bytes=100 << 20)) for share in (0, 24, 25, 99, 100)}
    assert {share: check.state for share, check in told.items()} == {
        0: "ok",
        24: "ok",
        25: "degraded",
        99: "degraded",
        100: "degraded",
    }
    assert told[25].detail == "it takes 25.0 MiB of at most 100.0 MiB: the drain is behind"
    assert "nothing is served" in told[100].detail


def test_metrics_are_what_prometheus_reads_and_paths_that_are_not_are_named() -> None:
    counter = Counter("hearth_tested", "Of this test.", ("kind",), registry=None)
    counter.labels("one").inc(3)
    port = free_ports(1)
    shown = registry(counter)
    http_listener.start(Health(role="tested", loops=(), checks=lambda: WELL, registry=shown), "127.0.0.1", port)
    wait_for(lambda: listens(port))
    said = ask(port, "/metrics")
    assert said.content_type.startswith("text/plain; version=")
    samples = [sample for family in text_string_to_metric_families(said.body) for sample in family.samples]
    assert [(s.labels, s.value) for s in samples if s.name == "hearth_tested_total"] == [({"kind": "one"}, 3.0)]
    assert "process_resident_memory_bytes" in {sample.name for sample in samples}
    assert not [sample.name for sample in samples if sample.name.endswith("_created")]
    assert ask(port, "/").status == 404
    assert "/readyz" in ask(port, "/").document["error"]


def test_a_taken_port_is_named_and_listened_on_once_it_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_listener, "RETRY_SECONDS", 0.05)
    port = free_ports(1)
    health = Health(role="tested", loops=(), checks=lambda: WELL, registry=registry())
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        http_listener.start(health, "127.0.0.1", port)
        wait_for(lambda: f"port {port} on 127.0.0.1" in caplog.text)
    assert "role tested" in caplog.text
    assert "the role itself goes on" in caplog.text
    assert "HEARTH_METRICS_PORT" in caplog.text
    wait_for(lambda: listens(port))
    assert ask(port, "/livez").status == 200


def test_a_question_that_hangs_holds_nobody_and_is_asked_once() -> None:
    asked: list[bool] = []
    answer = threading.Event()

    def question() -> str:
        asked.append(answer.is_set())
        answer.wait(60)
        return "here"

    bounded = BoundedCall(question)
    assert bounded.call(0.05) is None
    assert bounded.call(0.05) is None
    assert asked == [False]
    shared: list[str | None] = []
    sharing = [threading.Thread(target=lambda: shared.append(bounded.call(30))) for _ in range(3)]
    for each in sharing:
        each.start()
    answer.set()
    for each in sharing:
        each.join()
    assert shared == ["here"] * 3


def test_a_scraper_that_leaves_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    health = Health(role="tested", loops=(), checks=lambda: WELL, registry=registry())
    with http_listener.Server(("127.0.0.1", 0), health) as server:
        for error in (ConnectionResetError("reset by peer"), BrokenPipeError("broken pipe")):
            try:
                raise error
            except OSError:
                server.handle_error(None, None)
    assert [record.getMessage() for record in caplog.records] == [
        "a client left the health pages of role tested: reset by peer",
        "a client left the health pages of role tested: broken pipe",
    ]
    assert not any(record.exc_info for record in caplog.records)
