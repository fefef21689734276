"""Which prompts the load of the cache's benchmark asks for: in turn from anywhere, or by Zipf's law from a seed."""

from __future__ import annotations

import shutil
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.cache.questions import Question, write_template
from benchmarks.cache.stages import KEYS, Draw, arguments
from benchmarks.gateway.closed_loop import drive
from benchmarks.gateway.load import Address

pytestmark = pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")

RUN = "abcdefgh"


def test_prompts_in_turn_go_on_where_they_are_told(tmp_path: Path) -> None:
    assert asked(tmp_path, Draw(prompts=10, start=8))[:5] == [8, 9, 0, 1, 2]


def test_skewed_prompts_differ_from_seed_to_seed_and_favour_the_first(tmp_path: Path) -> None:
    one, other, again = (asked(tmp_path, Draw(prompts=1_000, skew=1.0, start=seed)) for seed in (1, 2, 1))
    assert one[:50] != other[:50]
    assert one[:50] == again[:50]
    assert statistics.median(one) < 250, "half of all is asked of the first 32"


def asked(folder: Path, draw: Draw) -> list[int]:
    """Return the prompts that one connection asks for, in order."""
    with serving() as (port, seen):
        address = Address(port=port, api_key="none", model="any")
        template = write_template(folder, address, Question(), RUN)
        drive(address, KEYS, arguments(template, draw), connections=1, seconds=1)
    return [int(body.partition(f"Question {RUN}-".encode())[2][:9]) for body in seen]


@contextmanager
def serving() -> Iterator[tuple[int, list[bytes]]]:
    """Answer every question; yields the port and the bodies that came."""
    seen: list[bytes] = []

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
