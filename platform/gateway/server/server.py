"""The HTTP/1.1 server: it passes requests to an ASGI application, on one event loop and no other thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

from gateway.server.connection import ClientConnection
from gateway.server.rejection import Rejection, Render
from gateway.server.request_response import RequestResponse

log = logging.getLogger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]

#: Connections over the limit that may stay open long enough to receive a 503.
MAX_REJECTED = 256


class Server:
    """The connections of a process and their requests. Call :meth:`check_timeouts` each second."""

    def __init__(
        self, application: Application, *, render: Render, most_connections: int, send_timeout_seconds: float
    ) -> None:
        """``send_timeout_seconds``: a client that reads nothing for this long is disconnected."""
        self.application = application
        self.render = render
        self.send_timeout_seconds = send_timeout_seconds
        self.connections: set[ClientConnection] = set()
        #: Connections over the limit that have not received their 503 yet.
        self.rejected: set[ClientConnection] = set()
        #: Running requests, also of clients that have left: others may follow them.
        self.running: set[RequestResponse] = set()
        #: Connections are closed after their current response.
        self.closing = False
        self.date = b""
        self._most_connections = most_connections
        self._over = asyncio.Event()
        self._update_date()

    def accept(self) -> ClientConnection:
        """Return the protocol of a new connection."""
        return ClientConnection(self)

    def opened(self, connection: ClientConnection) -> None:
        """Register a connection, or reject it if too many are open."""
        if len(self.connections) < self._most_connections:
            self.connections.add(connection)
            return
        self.rejected.add(connection)
        if len(self.rejected) <= MAX_REJECTED:
            connection.reject(Rejection(503, "too_many_connections", "Too many connections are open; retry."))
        else:
            connection.abort()

    def begin(self, request: RequestResponse) -> None:
        """Run the application for a request."""
        self.running.add(request)
        request.task = asyncio.get_running_loop().create_task(self._run(request))

    def check_timeouts(self) -> None:
        """Close connections that are silent for too long."""
        self._update_date()
        now = asyncio.get_running_loop().time()
        for connection in (*self.connections, *self.rejected):
            connection.check_timeouts(now)

    def close(self) -> None:
        """Close each connection, after its current response if there is one."""
        self.closing = True
        for connection in (*self.connections, *self.rejected):
            connection.close()
        self._check_over()

    async def over(self) -> None:
        """Wait until no request runs and no connection is open. Call :meth:`close` first."""
        await self._over.wait()

    def lost(self, connection: ClientConnection) -> None:
        """Unregister a connection."""
        self.connections.discard(connection)
        self.rejected.discard(connection)
        self._check_over()

    def abort(self) -> None:
        """Close each connection at once, and cancel all requests."""
        for connection in (*self.connections, *self.rejected):
            connection.abort()
        for request in self.running:
            if request.task is not None:
                request.task.cancel()

    async def _run(self, request: RequestResponse) -> None:
        try:
            await self.application(request.scope, request.receive, request.send)
        except Exception:
            log.exception("a request failed in the application")
        finally:
            self.running.discard(request)
            request.finished()
            self._check_over()

    def _check_over(self) -> None:
        if self.closing and not (self.running or self.connections or self.rejected):
            self._over.set()

    def _update_date(self) -> None:
        self.date = b"date: " + formatdate(usegmt=True).encode()
