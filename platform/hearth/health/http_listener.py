"""The HTTP server of a role's health pages, ``/livez``, ``/readyz`` and ``/metrics``, in separate threads.

It answers while the role's loop is busy or stuck. If the port is in use, it logs an error and tries again; the role
continues meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from hearth.health.checks import Health

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
#: Longest wait for a request to arrive, so that a silent client holds no thread.
READ_SECONDS = 5.0
#: Requests that run at once: of Prometheus, probes and people, a few each.
MAX_REQUESTS = 16
#: Below it an agent serves the metrics of its engines, by the id of the replica.
ENGINES_PATH = "/metrics/engines/"

# The creation times of counters would double the page, and Prometheus detects a restart without them.
disable_created_metrics()  # type: ignore[no-untyped-call]  # it takes and returns nothing


def start(health: Health, host: str, port: int) -> None:
    """Serve from a separate thread and return at once. The thread ends with the process."""
    threading.Thread(target=_serve, args=(health, host, port), name="health", daemon=True).start()


def _serve(health: Health, host: str, port: int) -> None:
    said = False
    while True:
        try:
            server = Server((host, port), health)
        except OSError as error:
            if not said:
                log.error(
                    "role %s: port %s on %s cannot be listened on (%s): no /metrics, /livez and /readyz until it is "
                    "free; the role itself goes on. HEARTH_METRICS_PORT chooses other ports.",
                    *(health.role, port, host, error.strerror or error),
                )
                said = True
            time.sleep(RETRY_SECONDS)
            continue
        with server:
            server.serve_forever()
        return


class Server(ThreadingHTTPServer):
    """Uses one thread per request, up to MAX_REQUESTS; none of them keeps the process alive.

    A further request ends the oldest, so that slow clients cannot keep probes out.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], health: Health) -> None:
        """Bind the address. Raises OSError."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.health = health
        self._lock = threading.Lock()
        self._running: dict[socket.socket, None] = {}  # in the order of their arrival
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of one request."""
        with self._lock:
            oldest = next(iter(self._running)) if len(self._running) >= MAX_REQUESTS else None
            if oldest is not None:
                del self._running[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._running[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a request that has been answered, or has failed."""
        with self._lock:
            self._running.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error of one request, without a traceback if its client disconnected."""
        error = sys.exception()
        if isinstance(error, ConnectionError | TimeoutError):
            log.info("a client left the health pages of role %s: %s", self.health.role, error)
        else:
            log.warning("a request for the health pages of role %s failed", self.health.role, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Answers GET."""

    server: Server
    timeout = READ_SECONDS

    def do_GET(self) -> None:
        """Answer one request."""
        path = self.path.partition("?")[0]
        if path == "/livez":
            self._send_json(*self.server.health.liveness())
        elif path == "/readyz":
            self._send_json(*self.server.health.readiness())
        elif path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("accept", ""))
            self._send(200, content_type, encode(self.server.health.registry))
        elif path.startswith(ENGINES_PATH) and self.server.health.engine_metrics is not None:
            self._send_engine_metrics(self.server.health.engine_metrics, path.removeprefix(ENGINES_PATH))
        else:
            self._send_not_found(path)

    def _send_engine_metrics(self, read: Callable[[str], bytes | None], replica: str) -> None:
        try:
            page = read(replica)
        except (OSError, HTTPException) as error:
            self._send_error(502, f"The engine of replica {replica} does not answer: {error or type(error).__name__}.")
            return
        if page is None:
            self._send_error(404, f"No engine of replica {replica[:40]!r} runs on this node.")
        else:
            self._send(200, CONTENT_TYPE_LATEST, page)

    def _send_json(self, well: bool, document: dict[str, object]) -> None:
        self._send(200 if well else 503, "application/json", json.dumps(document).encode())

    def _send_not_found(self, path: str) -> None:
        engines = f" and {ENGINES_PATH}REPLICA" if self.server.health.engine_metrics is not None else ""
        self._send_error(404, f"Nothing is served at {path[:200]}. Served are /livez, /readyz, /metrics{engines}.")

    def _send_error(self, status: int, text: str) -> None:
        self._send(status, "application/json", json.dumps({"error": text}).encode())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests, because probes come every few seconds."""
