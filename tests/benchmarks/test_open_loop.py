"""The open-loop load generator: sends what is due, once each, and counts every way in which an answer can end."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.gateway import open_loop

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

SENT = re.compile(rb"X-Session-Id: s([0-9]{9})\r\n\r\nnumber ([0-9]{9})")
TEMPLATE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\nX-Session-Id: s{session}\r\n\r\nnumber {number}#"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n3\r\n ok\r\n0\r\n\r\n"
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return open_loop.build(tmp_path_factory.mktemp("open_loop"))


@pytest.mark.parametrize(
    ("answer", "counted"),
    [(WHOLE, "answered"), (STREAM, "answered"), (CLOSING, "answered"), (REFUSAL, "refused"), (b"", "broken")],
    ids=["whole", "stream", "closing", "refusal", "nothing"],
)
def test_each_request_that_is_due_is_counted_once(program: Path, answer: bytes, counted: str) -> None:
    with serving(answer) as (port, seen):
        found = load(program, port, rate=50, distinct=0)
    assert {name: found[name] for name in ("due", "answered", "refused", "broken", "unanswered")} == {
        "due": 50,
        "answered": 0,
        "refused": 0,
        "broken": 0,
        "unanswered": 0,
        counted: 50,
    }
    assert sorted(number for _, number in seen) == list(range(50))
    assert all(session == number % 256 for session, number in seen)


def test_repeated_prompts_take_turns(program: Path) -> None:
    with serving(WHOLE) as (port, seen):
        load(program, port, rate=30, distinct=10)
    assert sorted(number for _, number in seen) == sorted([*range(10)] * 3)


def load(program: Path, port: int, *, rate: int, distinct: int) -> dict[str, float]:
    """Send that many requests within a second, on four connections, and return what the generator says."""
    template = program.parent / "template"
    template.write_bytes(TEMPLATE)
    command = [str(program), str(port), str(template), str(rate), "1", "0", str(distinct), "4"]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


@contextmanager
def serving(answer: bytes) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Give every request this answer, byte by byte when there is one, and close if it says so or is empty.

    Yields the port and a list of (session, number) that grows.
    """
    seen: list[tuple[int, int]] = []
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            received = b""
            while piece := connection.recv(4096):
                received += piece
                while found := SENT.search(received):
                    received = received[found.end() :]
                    seen.append((int(found[1]), int(found[2])))
                    for position in range(0, len(answer), 7):
                        connection.sendall(answer[position : position + 7])
                    if answer in (b"", CLOSING):
                        return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=[connection]))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1], seen
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()
