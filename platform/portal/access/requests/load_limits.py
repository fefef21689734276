"""Bound what clients can take from the portal before anybody knows who they are: memory, time, threads, connections.

Django gives each request a thread and a database connection, and spools a body of any size to disk before a view runs.
So this stands in front of Django: a body is read here, within bounds; at most RUNNING requests run at once, of one
client at most RUNNING_OF_CLIENT; the others wait in order, or receive 503 when too many wait or one waits too long. A
client is an IPv4 address or the /64 of an IPv6 address, read through trusted proxies.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from django.conf import settings

from portal.access.requests.paths import ORGANIZATION
from tenants import networks

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

#: Largest body. A price list or a policy has some kilobytes.
BODY_BYTES = 2**20
BODY_SECONDS = 30.0
#: Bytes of bodies in memory, of all clients and of one.
BODIES_BYTES = 64 * 2**20
BODIES_BYTES_OF_CLIENT = 8 * 2**20
#: Requests in Django at once, each with a thread and a database connection.
RUNNING = 16
RUNNING_OF_CLIENT = 8
#: Requests of one client that wait, and how long each waits.
WAITING_OF_CLIENT = 64
WAITING = 512
WAIT_SECONDS = 10.0
#: Responses in more than one piece, files among them, that are being sent, of all clients and of one. They leave their
#: place among RUNNING to others, because a client may read slowly; each piece, 64 KiB, is taken within SEND_SECONDS.
SENDING = 48
SENDING_OF_CLIENT = 24
SEND_SECONDS = 10.0
WEBSOCKETS = 512
WEBSOCKETS_OF_CLIENT = 32


class _Rejected(Exception):
    """The request is answered here. Carries status, code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class _Disconnected(Exception):
    """The client disconnected before its body was complete."""


@dataclass(slots=True)
class _Bytes:
    """How many bytes of one body are in memory."""

    count: int = 0


@dataclass(slots=True)
class _Client:
    """What one client takes now."""

    #: Requests that run or wait, and those of them that may run.
    requests: int = 0
    running: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RUNNING_OF_CLIENT))


class LoadLimits:
    """An ASGI application that passes a bounded number of bounded requests to another."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._running = asyncio.Semaphore(RUNNING)
        self._waiting = 0
        self._clients: dict[str, _Client] = {}
        #: Responses that are being sent, bytes of bodies in memory, and open WebSockets, by client.
        self._sending: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._all_bytes = 0
        self._websockets: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request or WebSocket."""
        client = _client_of(scope)
        if scope["type"] == "websocket":
            await self._websocket(client, scope, receive, send)
            return
        try:
            async with self._body(client, receive) as body, self._turn(client) as leave:
                with _Sender(self._sending, client, send, leave) as sender:
                    await self._application(scope, _replay(body, receive), sender.send)
                if sender.refused:
                    raise _busy()
        except _Rejected as error:
            await _reject(error, scope, send)
        except _Disconnected:
            return

    async def _websocket(self, client: str, scope: Any, receive: Receive, send: Send) -> None:
        if self._websockets.total() >= WEBSOCKETS or self._websockets[client] >= WEBSOCKETS_OF_CLIENT:
            await send({"type": "websocket.close"})
            return
        with _counted(self._websockets, client):
            await self._application(scope, receive, send)

    @asynccontextmanager
    async def _body(self, client: str, receive: Receive) -> AsyncIterator[bytes]:
        """Read the request's body, and count its bytes while the block runs. Raises _Rejected, _Disconnected."""
        taken = _Bytes()
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await self._read(client, receive, taken)
            except TimeoutError:
                raise _Rejected(
                    408, "body_too_slow", f"The body did not arrive within {BODY_SECONDS:g} s. Send it faster."
                ) from None
            yield body
        finally:
            self._all_bytes -= taken.count
            self._bytes[client] -= taken.count
            if not self._bytes[client]:
                del self._bytes[client]

    async def _read(self, client: str, receive: Receive, taken: _Bytes) -> bytes:
        pieces: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            piece: bytes = message.get("body", b"")
            pieces.append(piece)
            taken.count += len(piece)
            self._bytes[client] += len(piece)
            self._all_bytes += len(piece)
            self._check_bytes(client, taken.count)
            if not message.get("more_body", False):
                return b"".join(pieces)

    def _check_bytes(self, client: str, size: int) -> None:
        if size > BODY_BYTES:
            raise _Rejected(413, "body_too_large", f"The body is too large. At most {BODY_BYTES} bytes are allowed.")
        if self._bytes[client] > BODIES_BYTES_OF_CLIENT or self._all_bytes > BODIES_BYTES:
            raise _busy()

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[Callable[[], None]]:
        """Wait until the request may run; let the next one run after the block, or as soon as the yielded is called.

        Raises _Rejected.
        """
        mine = self._clients.setdefault(client, _Client())
        if mine.requests >= RUNNING_OF_CLIENT + WAITING_OF_CLIENT or self._waiting >= WAITING:
            raise _busy()
        mine.requests += 1
        try:
            await self._acquire(mine)
            with ExitStack() as turn:
                turn.callback(mine.running.release)
                turn.callback(self._running.release)
                yield turn.close
        finally:
            mine.requests -= 1
            if not mine.requests:
                del self._clients[client]

    async def _acquire(self, client: _Client) -> None:
        """Take the client's turn first, so that the common queue has at most RUNNING_OF_CLIENT requests of it."""
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await client.running.acquire()
                try:
                    await self._running.acquire()
                except BaseException:
                    client.running.release()
                    raise
        except TimeoutError:
            raise _busy() from None
        finally:
            self._waiting -= 1


class _Sender:
    """Sends one response, if the client may have one more that takes long.

    It never raises: Django closes its database connection only after an application that ran to its end.
    """

    def __init__(self, sending: Counter[str], client: str, send: Send, leave: Callable[[], None]) -> None:
        """``leave`` lets another request run."""
        self._sending = sending
        self._leave = leave
        self._client = client
        self._send = send
        #: The head of the response, until its body is known to be sent at once or may be sent in pieces.
        self._head: Message | None = None
        self._counts = False
        #: No more is sent.
        self._ended = False
        #: Nothing was sent, because the client has too many responses that take long.
        self.refused = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._counts:
            self._sending[self._client] -= 1
            if not self._sending[self._client]:
                del self._sending[self._client]

    async def send(self, message: Message) -> None:
        """Send a part of the response, or drop it."""
        if self._ended:
            return
        if message["type"] == "http.response.start":
            self._head = message
            return
        if message.get("more_body", False) and not self._counts and not self._count():
            self._ended = self.refused = True
            return
        head, self._head = self._head, None
        for part in (head, message):
            if part is not None and not self._ended:
                await self._pass_on(part)

    def _count(self) -> bool:
        if self._sending[self._client] >= SENDING_OF_CLIENT or self._sending.total() >= SENDING:
            return False
        self._sending[self._client] += 1
        self._counts = True
        self._leave()
        return True

    async def _pass_on(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send(message)
        except TimeoutError:
            self._ended = True


@contextmanager
def _counted(counter: Counter[str], client: str) -> Iterator[None]:
    counter[client] += 1
    try:
        yield
    finally:
        counter[client] -= 1
        if not counter[client]:
            del counter[client]


def _client_of(scope: Any) -> str:
    """Return what the client is counted by."""
    peer = scope["client"][0] if scope.get("client") else ""
    forwarded = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
    return networks.client_network(networks.client_address(peer, forwarded, settings.TRUSTED_PROXIES))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that returns the body first, and then what the server has."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return unread.pop() if unread else await receive()

    return replayed


def _busy() -> _Rejected:
    return _Rejected(503, "too_busy", "Too many requests are running. Try again in a few seconds.")


async def _reject(error: _Rejected, scope: Any, send: Send) -> None:
    """Answer in the API's envelope, or with a line of text to a browser."""
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    headers = [(b"connection", b"close"), *([(b"retry-after", b"5")] if error.status == 503 else [])]
    if scope["path"].startswith(("/api/", ORGANIZATION)):
        content_type = b"application/json"
        text = json.dumps({"error": {"message": error.message, "type": kind, "param": None, "code": error.code}})
    else:
        content_type, text = b"text/plain; charset=utf-8", error.message
    body = text.encode()
    headers += [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
