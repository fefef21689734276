"""The process that serves a gateway's HTTP: its start, its shared port, its failures and its graceful stop."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth import gateway_server
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 60


class Servers:
    """Server processes on one port."""

    def __init__(self) -> None:
        self.port = free_ports(1)
        self._all: list[subprocess.Popen[str]] = []
        self._connections: list[http.client.HTTPConnection] = []

    def start(self, *, grace_seconds: float = 30.0, start: str = "starts") -> subprocess.Popen[str]:
        """Start one more process."""
        command = [sys.executable, "-m", "tests.hearth.served_application", str(self.port), str(grace_seconds), start]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._all.append(process)
        return process

    def ask(self, path: str = "/v1/models") -> http.client.HTTPResponse:
        """Send a request over a new connection, as soon as a process listens."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
            self._connections.append(connection)
            try:
                connection.request("GET", path)
                return connection.getresponse()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def body(self) -> bytes:
        """Return the body of a response."""
        with self.ask() as response:
            return response.read()

    def listening(self) -> int:
        """Return how many sockets listen on the port."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return sum(line.split()[1].endswith(f":{self.port:04X}") and line.split()[3] == "0A" for line in lines)

    def wait_for(self, listening: int) -> None:
        """Wait until this many sockets listen."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.listening() != listening:
            assert time.monotonic() < deadline, self.listening()
            time.sleep(0.02)

    def end(self) -> None:
        """Close all connections and kill all processes."""
        for connection in self._connections:
            connection.close()
        for process in self._all:
            process.kill()
            process.communicate()


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end_and_closes_what_it_opened(servers: Servers, number: signal.Signals) -> None:
    server = servers.start()
    assert servers.body() == b"ok"
    server.send_signal(number)
    assert server.communicate(timeout=TIMEOUT_SECONDS) == ("closed\n", "")
    assert server.returncode == 0


def test_what_outlives_its_grace_is_stopped_before_the_application_closes(servers: Servers) -> None:
    server = servers.start(grace_seconds=0.2)
    stream = servers.ask("/v1/stream")
    assert stream.read(5) == b"first"
    server.terminate()
    assert server.communicate(timeout=TIMEOUT_SECONDS) == ("stopped\nclosed\n", "")
    assert server.returncode == 0
    with stream, pytest.raises((http.client.IncompleteRead, ConnectionError)):
        stream.read()


def test_one_restarts_on_its_port_while_another_serves_there(servers: Servers) -> None:
    first, _ = servers.start(), servers.start()
    servers.wait_for(2)
    first.terminate()
    assert first.wait(TIMEOUT_SECONDS) == 0
    assert servers.listening() == 1
    assert servers.body() == b"ok"
    servers.start()
    servers.wait_for(2)
    assert servers.body() == b"ok"


@pytest.mark.parametrize("start", ["raises", "fails"])
def test_an_application_that_cannot_start_ends_the_process_and_takes_no_connection(
    servers: Servers, start: str
) -> None:
    server = servers.start(start=start)
    _, errors = server.communicate(timeout=TIMEOUT_SECONDS)
    assert server.returncode == 1
    assert "the database is unavailable" in errors.splitlines()[-1]
    assert servers.listening() == 0


def test_a_port_that_somebody_has_to_himself_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as alone, pytest.raises(OSError, match="in use"):
        gateway_server.listen("127.0.0.1", alone.getsockname()[1])
