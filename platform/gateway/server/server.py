"""Connections of clients: HTTP/1.1 in, ASGI out, on one event loop and no other thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

from gateway.errors import Unavailable
from gateway.server.connection import Connection
from gateway.server.request_response import Request

log = logging.getLogger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]

#: Of the connections that are too many so many may be open to be told so.
MAX_TURNED_AWAY = 256


class Front:
    """What the connections of a process share. :meth:`look` is to be called each second."""

    def __init__(self, application: Application, *, most_connections: int, send_timeout_seconds: float) -> None:
        """``send_timeout_seconds``: who takes nothing of what is sent for so long is cut off."""
        self.application = application
        self.send_timeout_seconds = send_timeout_seconds
        self.connections: set[Connection] = set()
        #: Those that were too many, and may not know it yet.
        self.turned_away: set[Connection] = set()
        #: What runs, for clients and, once those have left, for whoever follows.
        self.running: set[Request] = set()
        #: Connections are closed with the answer that they wait for.
        self.closing = False
        self.date = b""
        self._most_connections = most_connections
        self._over = asyncio.Event()
        self._tell_time()

    def accept(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self)

    def opened(self, connection: Connection) -> None:
        """Take note that a connection is there, and turn it away if as many are open as may be."""
        if len(self.connections) < self._most_connections:
            self.connections.add(connection)
            return
        self.turned_away.add(connection)
        if len(self.turned_away) <= MAX_TURNED_AWAY:
            connection.refuse(Unavailable("Too many connections are open; try again.", "too_many_connections"))
        else:
            connection.abort()

    def begin(self, request: Request) -> None:
        """Have a request answered."""
        self.running.add(request)
        request.task = asyncio.get_running_loop().create_task(self._run(request))

    def look(self) -> None:
        """Close what is silent for too long."""
        self._tell_time()
        now = asyncio.get_running_loop().time()
        for connection in (*self.connections, *self.turned_away):
            connection.look(now)

    def close(self) -> None:
        """Close each connection, those that wait for an answer once they have it."""
        self.closing = True
        for connection in (*self.connections, *self.turned_away):
            connection.close()
        self._see_whether_over()

    async def over(self) -> None:
        """Wait until nothing runs and no connection is open. Close it first."""
        await self._over.wait()

    def lost(self, connection: Connection) -> None:
        """Take note that a connection is gone."""
        self.connections.discard(connection)
        self.turned_away.discard(connection)
        self._see_whether_over()

    def abort(self) -> None:
        """Close each connection at once, and stop all that runs."""
        for connection in (*self.connections, *self.turned_away):
            connection.abort()
        for request in self.running:
            if request.task is not None:
                request.task.cancel()

    async def _run(self, request: Request) -> None:
        try:
            await self.application(request.scope, request.receive, request.send)
        except Exception:
            log.exception("a request failed in the application")
        finally:
            self.running.discard(request)
            request.ran()
            self._see_whether_over()

    def _see_whether_over(self) -> None:
        if self.closing and not (self.running or self.connections or self.turned_away):
            self._over.set()

    def _tell_time(self) -> None:
        self.date = b"date: " + formatdate(usegmt=True).encode()
