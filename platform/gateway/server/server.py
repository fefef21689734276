"""Connections of clients: HTTP/1.1 in, ASGI out, on one event loop and no other thread."""

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

#: Of the connections that are too many so many may be open to be told so.
MAX_REJECTED = 256


class Server:
    """What the connections of a process share. :meth:`check_timeouts` is to be called each second."""

    def __init__(
        self, application: Application, *, render: Render, most_connections: int, send_timeout_seconds: float
    ) -> None:
        """``send_timeout_seconds``: a client that reads nothing for this long is disconnected."""
        self.application = application
        self.render = render
        self.send_timeout_seconds = send_timeout_seconds
        self.connections: set[ClientConnection] = set()
        #: Those that were too many, and may not know it yet.
        self.rejected: set[ClientConnection] = set()
        #: What runs, for clients and, once those have left, for whoever follows.
        self.running: set[RequestResponse] = set()
        #: Connections are closed with the answer that they wait for.
        self.closing = False
        self.date = b""
        self._most_connections = most_connections
        self._over = asyncio.Event()
        self._tell_time()

    def accept(self) -> ClientConnection:
        """Return the protocol of a new connection."""
        return ClientConnection(self)

    def opened(self, connection: ClientConnection) -> None:
        """Take note that a connection is there, and turn it away if as many are open as may be."""
        if len(self.connections) < self._most_connections:
            self.connections.add(connection)
            return
        self.rejected.add(connection)
        if len(self.rejected) <= MAX_REJECTED:
            connection.refuse(Rejection(503, "too_many_connections", "Too many connections are open; retry."))
        else:
            connection.abort()

    def begin(self, request: RequestResponse) -> None:
        """Have a request answered."""
        self.running.add(request)
        request.task = asyncio.get_running_loop().create_task(self._run(request))

    def check_timeouts(self) -> None:
        """Close what is silent for too long."""
        self._tell_time()
        now = asyncio.get_running_loop().time()
        for connection in (*self.connections, *self.rejected):
            connection.check_timeouts(now)

    def close(self) -> None:
        """Close each connection, those that wait for an answer once they have it."""
        self.closing = True
        for connection in (*self.connections, *self.rejected):
            connection.close()
        self._see_whether_over()

    async def over(self) -> None:
        """Wait until nothing runs and no connection is open. Close it first."""
        await self._over.wait()

    def lost(self, connection: ClientConnection) -> None:
        """Take note that a connection is gone."""
        self.connections.discard(connection)
        self.rejected.discard(connection)
        self._see_whether_over()

    def abort(self) -> None:
        """Close each connection at once, and stop all that runs."""
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
            self._see_whether_over()

    def _see_whether_over(self) -> None:
        if self.closing and not (self.running or self.connections or self.rejected):
            self._over.set()

    def _tell_time(self) -> None:
        self.date = b"date: " + formatdate(usegmt=True).encode()
