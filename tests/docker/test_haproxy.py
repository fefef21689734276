"""HAProxy as docs/deployment.md configures it: streams pass at once, and a head stops without a failed request."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hearth.paths import ROOT
from tests.hearth.served_application import TICKS
from tests.ports import free_ports
from workers.certificates import authority

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")

pytestmark = [pytest.mark.long, pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed")]

PATIENCE_SECONDS = 60.0
STREAMS = 8


@dataclass(slots=True)
class Site:
    """Two servers as gateways have, and the proxy in front of them."""

    port: int
    servers: tuple[int, int]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, server: int) -> None:
        """Start a server."""
        command = [sys.executable, "-m", "tests.hearth.served_application", str(server), "60", "starts"]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
        self.processes[server] = subprocess.Popen(command, cwd=ROOT, env=environment)

    def connect(self) -> http.client.HTTPSConnection:
        """Return a connection through the proxy."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS, context=context)

    def ask(self, path: str = "/v1/port") -> tuple[int, bytes]:
        """Send one request through a new connection."""
        link = self.connect()
        try:
            link.request("GET", path)
            response = link.getresponse()
            return response.status, response.read()
        finally:
            link.close()

    def seen(self) -> set[bytes]:
        """Return which servers answer."""
        answers = [self.ask() for _ in range(4)]
        return {body for status, body in answers if status == 200}


@dataclass(slots=True)
class Client:
    """Sends requests over one connection, and now and then over a new one, until it is closed."""

    site: Site
    statuses: list[int] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send requests."""
        link = self.site.connect()
        while not self.closed.wait(0.01):
            link.request("GET", "/v1/port")
            response = link.getresponse()
            response.read()
            self.statuses.append(response.status)
            if len(self.statuses) % 10 == 0:
                link.close()
        link.close()


def configuration(folder: Path, port: int, servers: tuple[int, int]) -> str:
    """Return the documented configuration with the addresses and files of this test."""
    found = re.search(r"```haproxy\n(.*?)```", (ROOT / "docs" / "deployment.md").read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    for documented, here in (
        ("bind :443", f"bind 127.0.0.1:{port}"),
        ("/etc/haproxy/hearth.pem", str(folder / "hearth.pem")),
        ("/run/haproxy/admin.sock", str(folder / "admin.sock")),
        ("10.0.0.1:8080", f"127.0.0.1:{servers[0]}"),
        ("10.0.0.2:8080", f"127.0.0.1:{servers[1]}"),
        ("10.0.0.1:8081", f"127.0.0.1:{servers[0]}"),
        ("10.0.0.2:8081", f"127.0.0.1:{servers[1]}"),
    ):
        assert documented in text
        text = text.replace(documented, here)
    return text


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Both servers and the proxy, ready."""
    assert HAPROXY is not None
    port = free_ports(3)
    found = Site(port=port, servers=(port + 1, port + 2))
    (tmp_path / "hearth.pem").write_text(authority.gateway_credential(authority.new_authority()).pem)
    file = tmp_path / "haproxy.cfg"
    file.write_text(configuration(tmp_path, port, found.servers))
    checked = subprocess.run([HAPROXY, "-c", "-f", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "WARNING" not in checked.stdout + checked.stderr
    for server in found.servers:
        found.start(server)
    proxy = subprocess.Popen([HAPROXY, "-db", "-f", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _answers(found) == {str(server).encode() for server in found.servers})
        yield found
    finally:
        for process in (proxy, *found.processes.values()):
            process.kill()
            process.wait()


def _answers(site: Site) -> set[bytes]:
    try:
        return site.seen()
    except OSError:
        return set()


def test_a_head_stops_and_comes_back_without_a_failed_request_or_a_cut_stream(site: Site) -> None:
    first, second = site.servers
    assert site.ask("/portal/") == (200, b"ok")
    links = [site.connect() for _ in range(STREAMS)]
    streams = []
    for link in links:
        link.request("GET", "/v1/ticks")
        streams.append(link.getresponse())
    # events arrive one by one, not when the stream ends
    assert [stream.readline() for stream in streams] == [b"data: 0\n"] * STREAMS
    clients = [Client(site) for _ in range(4)]
    with ThreadPoolExecutor(len(clients)) as threads:
        running = [threads.submit(client.run) for client in clients]
        try:
            until(lambda: all(client.statuses for client in clients))
            leaving = site.processes.pop(first)
            leaving.terminate()
            rest = [stream.read() for stream in streams]
            assert leaving.wait(PATIENCE_SECONDS) == 0
            before = [len(client.statuses) for client in clients]
            until(lambda: all(len(client.statuses) > sent + 20 for client, sent in zip(clients, before, strict=True)))
            assert site.seen() == {str(second).encode()}
            site.start(first)
            until(lambda: str(first).encode() in site.seen())
        finally:
            for client in clients:
                client.closed.set()
        for each in running:
            each.result()
    whole = [f"data: {number}".encode() for number in range(1, TICKS)] + [b"data: [DONE]"]
    assert [[line for line in each.split(b"\n") if line] for each in rest] == [whole] * STREAMS
    assert {status for client in clients for status in client.statuses} == {200}
    for link in links:
        link.close()
