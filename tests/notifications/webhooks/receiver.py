"""A receiver of webhooks: a real HTTP server on loopback that records what it gets and answers as it is told."""

from __future__ import annotations

import base64
import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True, kw_only=True)
class Receiver:
    """``statuses`` are answered in order, the last one from then on. ``silent``: it answers nothing until it is set."""

    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [204])
    answer: bytes = b""
    location: str = ""
    silent: threading.Event | None = None
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/hook"


@contextmanager
def listening(**options: object) -> Iterator[Receiver]:
    """Run a receiver until the block ends."""
    receiver = Receiver(**options)  # type: ignore[arg-type]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(path=self.path, headers=headers, body=body))
            if receiver.silent is not None:
                receiver.silent.wait(60)
                return
            self.send_response(receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0])
            if receiver.location:
                self.send_header("location", receiver.location)
            self.send_header("content-length", str(len(receiver.answer)))
            self.end_headers()
            self.wfile.write(receiver.answer)

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        if receiver.silent is not None:
            receiver.silent.set()
        server.shutdown()
        server.server_close()
        thread.join()


def signature(secret: str, receiver: Receiver) -> str:
    """Return what the newest request's signature must be, computed as the specification says."""
    got = receiver.received[-1]
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
