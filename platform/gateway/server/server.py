"""The HTTP/1.1 server: it passes requests to an ASGI application, on one event loop and no other thread."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
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
#: When all connections are in use, a new one displaces the longest idle one, unless its client holds this share.
FULL_SHARE = 1 / 4
#: Connections whose timeouts are checked before the loop serves others: closing one takes up to 0.1 ms.
CHECKED_AT_ONCE = 32


class Server:
    """The connections of a process and their requests. Call :meth:`check_timeouts` each second."""

    def __init__(
        self,
        application: Application,
        *,
        render: Render,
        most_connections: int,
        send_timeout_seconds: float,
        client_of: Callable[[str], str] = str,
    ) -> None:
        """``send_timeout_seconds``: a client that reads nothing for this long is disconnected.

        ``client_of`` returns what the client with an IP address is counted by, empty for a proxy of many clients.
        """
        self.application = application
        self.render = render
        self.send_timeout_seconds = send_timeout_seconds
        self.connections: set[ClientConnection] = set()
        #: Connections over the limit that are not closed yet.
        self.rejected: set[ClientConnection] = set()
        #: Running requests, also of clients that have left: others may follow them.
        self.running: set[RequestResponse] = set()
        #: Connections are closed after their current response.
        self.closing = False
        #: Connections that wait to discard more bytes.
        self.discarding = 0
        self.date = b""
        self._most_connections = most_connections
        self._client_of = client_of
        #: Open connections without a whole request, longest idle first; and how many each client has open.
        self._idle: dict[ClientConnection, None] = {}
        self._open_by_client: Counter[str] = Counter()
        self._over = asyncio.Event()
        self._update_date()

    def accept(self) -> ClientConnection:
        """Return the protocol of a new connection."""
        return ClientConnection(self)

    def opened(self, connection: ClientConnection) -> None:
        """Register a connection; if too many are open, displace an idle one for it or reject it."""
        if len(self.connections) >= self._most_connections and not self._make_room(connection):
            self._reject(connection)
            return
        self.connections.add(connection)
        self._open_by_client[self._client_of(connection.address)] += 1
        self._idle[connection] = None

    def idle(self, connection: ClientConnection) -> None:
        """Note that a connection waits, from now, for its next request or for the rest of one."""
        if connection in self.connections:
            self._idle.pop(connection, None)
            self._idle[connection] = None

    def busy(self, connection: ClientConnection) -> None:
        """Note that a connection has a whole request."""
        self._idle.pop(connection, None)

    def begin(self, request: RequestResponse) -> None:
        """Run the application for a request."""
        self.running.add(request)
        request.task = asyncio.get_running_loop().create_task(self._run(request))

    async def check_timeouts(self) -> None:
        """Close connections that are silent for too long, a few at a time, so that requests run in between."""
        self._update_date()
        loop = asyncio.get_running_loop()
        for number, connection in enumerate((*self.connections, *self.rejected), start=1):
            connection.check_timeouts(loop.time())
            if number % CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)

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
        self._forget(connection)
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

    def _make_room(self, newcomer: ClientConnection) -> bool:
        """Close the longest idle connection; return whether there was one and the newcomer may displace it.

        So a client that opens connections without end cannot keep others out.
        """
        client = self._client_of(newcomer.address)
        if client and self._open_by_client[client] >= self._most_connections * FULL_SHARE:
            return False
        longest_idle = next(iter(self._idle), None)
        if longest_idle is None:
            return False
        self._forget(longest_idle)
        self.rejected.add(longest_idle)
        longest_idle.displace()
        return True

    def _reject(self, connection: ClientConnection) -> None:
        self.rejected.add(connection)
        if len(self.rejected) <= MAX_REJECTED:
            connection.reject(Rejection(503, "too_many_connections", "Too many connections are open; retry."))
        else:
            connection.abort()

    def _forget(self, connection: ClientConnection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self._idle.pop(connection, None)
        client = self._client_of(connection.address)
        self._open_by_client[client] -= 1
        if not self._open_by_client[client]:
            del self._open_by_client[client]

    def _check_over(self) -> None:
        if self.closing and not (self.running or self.connections or self.rejected):
            self._over.set()

    def _update_date(self) -> None:
        self.date = b"date: " + formatdate(usegmt=True).encode()
