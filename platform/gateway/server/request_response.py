"""One HTTP/1.1 request and its response: the ``receive`` and ``send`` of an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Protocol

Message = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]

#: Bytes of a body that are read ahead of the application; then the client must wait.
READ_AHEAD_BYTES = 64 * 1024
#: An ASGI extension: a function that registers a callback for a client that disconnects before its response is sent.
ON_DISCONNECT = "hearth.on_disconnect"
CLOSE = (b"connection", b"close")

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode()) for status in HTTPStatus}


class Client(Protocol):
    """The connection of the request (``gateway.server.connection.ClientConnection``)."""

    #: The write buffer is full; senders must wait.
    is_full: bool

    @property
    def date(self) -> bytes:
        """The ``date`` header line."""

    @property
    def stays_open(self) -> bool:
        """Whether it stays open after the current response."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    async def drained(self) -> None:
        """Wait until the client has read most of the unsent bytes, or has disconnected."""

    def resume_reading(self) -> None:
        """Resume reading."""

    def finished(self, request: RequestResponse) -> None:
        """Continue after the application has finished a request."""


class RequestResponse:
    """One request and its response."""

    __slots__ = (
        "_broken",
        "_chunked",
        "_client",
        "_ended",
        "_expects",
        "_head",
        "_on_disconnect",
        "_pieces",
        "_size",
        "_waiting",
        "_without_body",
        "keeps",
        "responded",
        "scope",
        "started",
        "task",
        "whole",
    )

    def __init__(self, client: Client, scope: Message, *, keeps: bool, expects: bool) -> None:
        """``keeps``: its connection may carry another. ``expects``: its client waits for 100 Continue."""
        self.scope = scope
        self.keeps = keeps
        #: The whole body has arrived.
        self.whole = False
        #: A part of the response was sent; and all of it.
        self.started = False
        self.responded = False
        self.task: asyncio.Task[None] | None = None
        #: None once the client has disconnected, or the request has finished.
        self._client: Client | None = client
        self._expects = expects
        #: The rest of the body cannot arrive.
        self._broken = False
        self._pieces: list[bytes] = []
        self._size = 0
        #: The application has received the end of the body.
        self._ended = False
        self._waiting: asyncio.Future[Message] | None = None
        self._on_disconnect: Callable[[], None] | None = None
        #: The head of the response, until it is sent.
        self._head = b""
        self._chunked = False
        self._without_body = False

    def finished(self) -> None:
        """Release the request after the application has finished."""
        self._on_disconnect = self._waiting = None
        self.scope.pop("extensions", None)  # it refers to this request: only the garbage collector would free the cycle
        client, self._client = self._client, None
        if client is not None:
            client.finished(self)

    def receive(self) -> asyncio.Future[Message]:
        """Return the next event: a part of the body, or ``http.disconnect`` (ASGI)."""
        news: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if self._pieces or (self.whole and not self._ended):
            news.set_result(self._take())
        elif self._client is None or self._broken or self.responded:
            news.set_result({"type": "http.disconnect"})
        else:
            self._waiting = news
            if self._expects:
                self._expects = False
                self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return news

    async def send(self, message: Message) -> None:
        """Send the head or a part of the body, and wait while the client does not read (ASGI).

        Does nothing once the client has disconnected. Raises ValueError for a header with a line break.
        """
        client = self._client
        if client is None or self.responded:
            return
        if message["type"] == "http.response.start":
            self._expects = False
            self._head = self._make_head(message["status"], message["headers"], client)
            if self._chunked:  # the first chunk may take long
                asyncio.get_running_loop().call_soon(self._flush)
            return
        if client.is_full:
            await client.drained()
        body: bytes = message.get("body", b"")
        self.responded = not message.get("more_body", False)
        if self._without_body:
            body = b""
        elif self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if self.responded:
                body += b"0\r\n\r\n"
        self._flush(body)

    def on_disconnect(self, called: Callable[[], None]) -> None:
        """Call ``called``, once, if the client disconnects before its response is sent."""
        self._on_disconnect = called
        if self._client is None:
            self.disconnected()

    def feed(self, piece: bytes) -> bool:
        """Buffer a part of the body; return whether there is room for more."""
        self._expects = False
        self._pieces.append(piece)
        self._size += len(piece)
        self._notify()
        return self._size <= READ_AHEAD_BYTES

    def end(self) -> None:
        """Mark the body as complete."""
        self._expects = False
        self.whole = True
        self._notify()

    def break_off(self) -> None:
        """Mark the body as broken off; the client may still read a response."""
        self._broken = True
        self._notify()

    def disconnected(self) -> None:
        """Handle the client's disconnect."""
        self._client = None
        self._notify()
        called, self._on_disconnect = self._on_disconnect, None
        if called is not None:
            called()

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return
        gone = self._broken or self._client is None
        waiting.set_result(self._take() if self._pieces or not gone else {"type": "http.disconnect"})

    def _take(self) -> Message:
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._ended = self.whole
        if self._client is not None:
            self._client.resume_reading()
        return {"type": "http.request", "body": body, "more_body": not self.whole}

    def _make_head(self, status: int, headers: Headers, client: Client) -> bytes:
        """Return the head of the response. Raises ValueError."""
        written = head(status, client.date, headers)
        if b"\r\nconnection: close" in written:
            self.keeps = False
        elif not (self.keeps and self.whole and client.stays_open):
            self.keeps = False
            written += b"\r\nconnection: close"
        self._without_body = status in (204, 304) or self.scope["method"] == "HEAD"
        if not self._without_body and self.scope["http_version"] == "1.1" and b"\r\ncontent-length: " not in written:
            self._chunked = True
            written += b"\r\ntransfer-encoding: chunked"
        return written + b"\r\n\r\n"

    def _flush(self, body: bytes = b"") -> None:
        """Send the head, if it is not sent yet, and the body."""
        unsent, self._head = self._head, b""
        if self._client is not None and (unsent or body):
            self.started = True
            self._client.write(unsent + body)


def head(status: int, date: bytes, headers: Headers) -> bytes:
    """Return the head of a response, without its end. Raises ValueError for a header with a line break."""
    lines = [
        _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status,
        date,
        *[name + b": " + value for name, value in headers],
    ]
    written = b"\r\n".join(lines)
    if not written.count(b"\n") == written.count(b"\r") == len(lines) - 1:
        raise ValueError("a header has a line break")
    return written
