"""One HTTP/1.1 request of a client, as an ASGI application is given it, and its answer, as it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Protocol

Message = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]

#: Of a body that nobody takes so much is read ahead, bytes; then the client has to wait.
READ_AHEAD_BYTES = 64 * 1024
#: The name of an ASGI extension: a function that takes what is to be called when the client leaves too early.
ON_DISCONNECT = "hearth.on_disconnect"
CLOSE = (b"connection", b"close")

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode()) for status in HTTPStatus}


class Client(Protocol):
    """Who sent it (``gateway.server.connection.Connection``)."""

    #: So much is unsent that whoever sends has to wait.
    is_full: bool

    @property
    def date(self) -> bytes:
        """The header line that tells the time."""

    @property
    def stays_open(self) -> bool:
        """It will not be closed with the answer that is given now."""

    def write(self, data: bytes) -> None:
        """Send this."""

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent, or has left."""

    def read_on(self) -> None:
        """Listen again."""

    def finished(self, request: RequestResponse) -> None:
        """Take note that the application is done with a request."""


class RequestResponse:
    """One request and its answer, as an ASGI application is given them."""

    __slots__ = (
        "_bodyless",
        "_broken",
        "_client",
        "_ended",
        "_expects",
        "_head",
        "_in_chunks",
        "_on_disconnect",
        "_pieces",
        "_size",
        "_waiting",
        "answered",
        "keeps",
        "scope",
        "started",
        "task",
        "whole",
    )

    def __init__(self, client: Client, scope: Message, *, keeps: bool, expects: bool) -> None:
        """``keeps``: its connection may carry another. ``expects``: its client waits to be told to send the body."""
        self.scope = scope
        self.keeps = keeps
        #: All of its body is here.
        self.whole = False
        #: Its client was told something of the answer; and all of it.
        self.started = False
        self.answered = False
        self.task: asyncio.Task[None] | None = None
        #: None once its client has left, or has its answer.
        self._client: Client | None = client
        self._expects = expects
        #: No more of its body can come.
        self._broken = False
        self._pieces: list[bytes] = []
        self._size = 0
        #: The application knows that its body ends.
        self._ended = False
        self._waiting: asyncio.Future[Message] | None = None
        self._on_disconnect: Callable[[], None] | None = None
        #: Of the answer, not sent yet.
        self._head = b""
        self._in_chunks = False
        self._bodyless = False

    def finished(self) -> None:
        """Take note that the application is done with it."""
        self._on_disconnect = self._waiting = None
        self.scope.pop("extensions", None)  # it holds this request, which would wait for the garbage collector
        client, self._client = self._client, None
        if client is not None:
            client.finished(self)

    def receive(self) -> asyncio.Future[Message]:
        """Return what comes next: some of the body, or that the client has left (ASGI)."""
        news: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if self._pieces or (self.whole and not self._ended):
            news.set_result(self._taken())
        elif self._client is None or self._broken or self.answered:
            news.set_result({"type": "http.disconnect"})
        else:
            self._waiting = news
            if self._expects:
                self._expects = False
                self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return news

    async def send(self, message: Message) -> None:
        """Send the head or some of the body of the answer, and wait while the client does not read (ASGI).

        Once the client has left nothing is sent. Raises ValueError for a header that holds more than one line.
        """
        client = self._client
        if client is None or self.answered:
            return
        if message["type"] == "http.response.start":
            self._expects = False
            self._head = self._written(message["status"], message["headers"], client)
            if self._in_chunks:  # what comes first may be long in coming
                asyncio.get_running_loop().call_soon(self._flush)
            return
        if client.is_full:
            await client.drained()
        body: bytes = message.get("body", b"")
        self.answered = not message.get("more_body", False)
        if self._bodyless:
            body = b""
        elif self._in_chunks:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if self.answered:
                body += b"0\r\n\r\n"
        self._flush(body)

    def on_disconnect(self, called: Callable[[], None]) -> None:
        """Call this, once, when the client leaves before it has its answer."""
        self._on_disconnect = called
        if self._client is None:
            self.disconnected()

    def feed(self, piece: bytes) -> bool:
        """Take a piece of the body. Return whether more may come before that is taken."""
        self._expects = False
        self._pieces.append(piece)
        self._size += len(piece)
        self._tell()
        return self._size <= READ_AHEAD_BYTES

    def end(self) -> None:
        """Take note that all of the body is here."""
        self._expects = False
        self.whole = True
        self._tell()

    def break_off(self) -> None:
        """Take note that the rest of the body cannot come, though the client may still listen."""
        self._broken = True
        self._tell()

    def disconnected(self) -> None:
        """Take note that the client has left."""
        self._client = None
        self._tell()
        called, self._on_disconnect = self._on_disconnect, None
        if called is not None:
            called()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return
        gone = self._broken or self._client is None
        waiting.set_result(self._taken() if self._pieces or not gone else {"type": "http.disconnect"})

    def _taken(self) -> Message:
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._ended = self.whole
        if self._client is not None:
            self._client.read_on()
        return {"type": "http.request", "body": body, "more_body": not self.whole}

    def _written(self, status: int, headers: Headers, client: Client) -> bytes:
        """Return the head of the answer. Raises ValueError."""
        written = head(status, client.date, headers)
        if b"\r\nconnection: close" in written:
            self.keeps = False
        elif not (self.keeps and self.whole and client.stays_open):
            self.keeps = False
            written += b"\r\nconnection: close"
        self._bodyless = status in (204, 304) or self.scope["method"] == "HEAD"
        if not self._bodyless and self.scope["http_version"] == "1.1" and b"\r\ncontent-length: " not in written:
            self._in_chunks = True
            written += b"\r\ntransfer-encoding: chunked"
        return written + b"\r\n\r\n"

    def _flush(self, body: bytes = b"") -> None:
        """Send the head, if it is not sent yet, and what of the body there is."""
        unsent, self._head = self._head, b""
        if self._client is not None and (unsent or body):
            self.started = True
            self._client.write(unsent + body)


def head(status: int, date: bytes, headers: Headers) -> bytes:
    """Return the head of an answer, without its end. Raises ValueError for a header that holds more than one line."""
    lines = [
        _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status,
        date,
        *[name + b": " + value for name, value in headers],
    ]
    written = b"\r\n".join(lines)
    if not written.count(b"\n") == written.count(b"\r") == len(lines) - 1:
        raise ValueError("a header holds the end of a line")
    return written
