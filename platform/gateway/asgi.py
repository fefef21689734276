"""The gateway as a raw ASGI application, which serves about twenty times as many requests per core as a Django view."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, MutableMapping
from typing import Any

import msgspec
from django.conf import settings

from billing.errors import WalError
from gateway import metrics
from gateway.bodies.memory import BodyShare
from gateway.cors import CrossOrigin
from gateway.errors import BadRequest, BodyTooLarge, BodyTooSlow, GatewayError, Headers, Unavailable
from gateway.pipeline.handler import Pipeline
from gateway.protocols.endpoint_table import endpoint_for_errors
from gateway.request import CLOSE, JSON, ClientDisconnect, Request, Response
from gateway.server.rejection import Rejection
from gateway.server.request_response import ON_DISCONNECT
from gateway.streaming.sender import Send, deliver
from tenants import networks
from tenants.ids import new_id

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


#: A larger body is not read before its head is checked, even if it has arrived with it.
UNCHECKED_BYTES = 64 * 1024

#: How much of a too large body is read and discarded, as a multiple of the allowed size, and for how long. Of a body
#: that announces more nothing is read: it would be cut off anyway.
DISCARDED_BODIES = 2
DISCARD_SECONDS = 5.0


class ClientGone(Exception):
    """The client disconnected before its request was read."""


class Body:
    """A request's body as it arrives."""

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self._pending: Awaitable[MutableMapping[str, Any]] | None = None
        self.complete = False

    def piece_if_ready(self) -> bytes | None:
        """Return the next piece if it has arrived, as the whole body of a small request has. Raises ClientGone."""
        message = self.receive()
        if isinstance(message, asyncio.Future) and message.done():
            return self._read(message.result())
        self._pending = message
        return None

    def leave_unread(self) -> None:
        """Stop reading."""
        if self._pending is not None and isinstance(self._pending, Coroutine):
            self._pending.close()
        self._pending = None

    async def piece(self) -> bytes:
        """Return the next piece. Raises ClientGone."""
        pending, self._pending = self._pending, None
        return self._read(await (pending if pending is not None else self.receive()))

    def _read(self, message: MutableMapping[str, Any]) -> bytes:
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.complete = not message.get("more_body")
        piece: bytes = message.get("body", b"")
        return piece


class Interrupt:
    """Cancels the task that created it from a callback, and distinguishes this from any other cancellation."""

    __slots__ = ("_armed", "_cancelling", "_fired", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "requests are served in tasks"
        self._task = task
        self._cancelling = task.cancelling()
        self._armed = True
        self._fired = False

    def fire(self) -> None:
        """Cancel the task, once, unless disarmed."""
        if self._armed:
            self._armed = False
            self._fired = True
            self._task.cancel()

    def disarm(self) -> None:
        """Make later callbacks do nothing."""
        self._armed = False

    def explains_cancellation(self) -> bool:
        """Return whether the CancelledError just caught came only from here, and mark it as handled."""
        return self._fired and self._task.uncancel() <= self._cancelling


class GatewayApp:
    """Reads a request, runs the pipeline, and cancels it when the client disconnects."""

    def __init__(
        self,
        pipeline: Callable[[], Pipeline],
        *,
        max_body_bytes: int,
        body_timeout_seconds: float,
        send_timeout_seconds: float,
        cross_origin: CrossOrigin | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._cross_origin = cross_origin or CrossOrigin()
        self._send_timeout_seconds = send_timeout_seconds
        self._max_body_bytes = max_body_bytes
        self._body_timeout_seconds = body_timeout_seconds
        #: Requests in progress, running streams included.
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        interrupt = Interrupt()
        head = _head(scope, ClientDisconnect(interrupt.fire))
        body = Body(receive)
        self.in_flight += 1
        try:
            answering: Send | None = send
            if "origin" in head.headers:  # from a browser
                answering = await self._cross_origin.answer(head.method, head.headers, send)
            if answering is not None:
                await self._answer(scope, head, body, interrupt, answering)
        finally:
            self.in_flight -= 1
            body.leave_unread()
            if head.share is not None:
                head.share.release()

    async def _answer(self, scope: Scope, head: Request, body: Body, interrupt: Interrupt, send: Send) -> None:
        disconnect = head.disconnect
        try:
            request = await self._read(head, body, interrupt)
        except ClientGone:  # or it is still connected and sent a body that is not framed as its headers say
            error = BadRequest(
                "The body ended early, or does not match its content-length or transfer-encoding. Send it again.",
                "body_broken",
            )
            await self._send(send, _refused(error, scope["path"]), disconnect)
            return
        except GatewayError as error:
            if isinstance(error, BodyTooLarge) and "expect" not in head.headers:
                await self._discard(head, body)
            metrics.answered("unread", "", error.status)
            await self._send(send, _refused(error, scope["path"]), disconnect)
            return
        if isinstance(request, Response):
            await self._send(send, request, disconnect)
            return
        stop_watching = _watch(scope, body.receive, disconnect)
        try:
            try:
                response = await self._open().handle(request)
            except Unavailable as error:
                response = _refused(error, request.path)
            await self._send(send, response, disconnect)
        except asyncio.CancelledError:
            if not interrupt.explains_cancellation():  # the server stops
                raise
        finally:
            interrupt.disarm()
            stop_watching()

    def _send(self, send: Send, response: Response, disconnect: ClientDisconnect) -> Awaitable[None]:
        return deliver(send, response, timeout_seconds=self._send_timeout_seconds, disconnect=disconnect)

    def _open(self) -> Pipeline:
        """Return the pipeline; build it if that failed when the process started. Raises Unavailable."""
        try:
            return self._pipeline()
        except (WalError, OSError) as error:
            log.error("the gateway cannot be built: %s", error)
            raise Unavailable(
                "The usage log cannot be opened, so requests cannot be metered. Retry later, or tell the operator.",
                "usage_log_unavailable",
            ) from error

    async def _discard(self, head: Request, body: Body) -> None:
        """Read the rest of a rejected body, within bounds, because many clients read only after sending."""
        left = DISCARDED_BODIES * self._max_body_bytes
        if (_announced_bytes(head) or 0) > left:
            return
        with contextlib.suppress(TimeoutError, ClientGone):
            async with asyncio.timeout(DISCARD_SECONDS):
                while left > 0 and not body.complete:
                    left -= len(await body.piece())

    async def _read(self, head: Request, body: Body, interrupt: Interrupt) -> Request | Response:
        """Return the complete request, or the response to one that is refused by its head.

        Raises ClientGone, BodyTooLarge, BodyTooSlow, RateLimited, Unavailable.
        """
        announced = _announced_bytes(head)
        if announced is not None and announced > self._max_body_bytes:
            raise self._too_large()
        content = None
        if (announced is None or announced <= UNCHECKED_BYTES) and "expect" not in head.headers:
            content = body.piece_if_ready()
        if content is None or not body.complete:
            refusal = await self._open().check_head(head, announced)
            if refusal is not None:
                return refusal
            content = await self._read_in_time(body, head, interrupt, content)
        elif len(content) > self._max_body_bytes:
            raise self._too_large()
        return msgspec.structs.replace(head, body=content)

    async def _read_in_time(self, body: Body, head: Request, interrupt: Interrupt, first: bytes | None) -> bytes:
        # asyncio.timeout() would cost six times as much.
        slow = asyncio.get_running_loop().call_later(self._body_timeout_seconds, interrupt.fire)
        try:
            return await self._read_body(body, head, await body.piece() if first is None else first)
        except asyncio.CancelledError:
            if not interrupt.explains_cancellation():
                raise
            raise BodyTooSlow(
                f"The body did not arrive within {self._body_timeout_seconds:g} s. Send it faster, or send less.",
                "body_too_slow",
            ) from None
        finally:
            slow.cancel()

    async def _read_body(self, body: Body, head: Request, first: bytes) -> bytes:
        pieces = [first]
        size = len(first)
        while True:
            if size > self._max_body_bytes:
                raise self._too_large()
            if head.share is not None:
                head.share.grow(size)
            if body.complete:
                return b"".join(pieces)
            pieces.append(await body.piece())
            size += len(pieces[-1])

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"The body is too large. At most {self._max_body_bytes} bytes are allowed.", "body_too_large"
        )


def _head(scope: Scope, disconnect: ClientDisconnect) -> Request:
    """Return the request without its body."""
    headers = _headers(scope["headers"])
    return Request(
        method=scope["method"],
        path=scope["path"],
        headers=headers,
        body=b"",
        client=client_of(scope, headers),
        disconnect=disconnect,
        share=BodyShare(),
    )


def _announced_bytes(head: Request) -> int | None:
    """Return the length of the body that a request announces; None if it announces none."""
    text = head.headers.get("content-length", "")
    return int(text) if text.isdecimal() else None


def _watch(scope: Scope, receive: Receive, disconnect: ClientDisconnect) -> Callable[[], object]:
    """Call `disconnect.signal` when the client disconnects; return a function that stops watching."""
    on_disconnect = scope.get("extensions", {}).get(ON_DISCONNECT)
    if on_disconnect is not None:
        on_disconnect(disconnect.signal)
        return lambda: None
    # A callback, because a second task to wait for both would cost 12 µs more.
    gone = asyncio.ensure_future(receive())
    gone.add_done_callback(lambda _: disconnect.signal())
    return gone.cancel


def _headers(lines: Collection[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers by name; lines with the same name are joined to one list (RFC 9110, 5.3)."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in lines}
    if len(headers) == len(lines):
        return headers
    headers = {}
    for raw_name, raw_value in lines:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def client_of(scope: Scope, headers: Mapping[str, str]) -> str:
    """Return the address of the client; empty when it is not known."""
    peer = str((scope.get("client") or ("",))[0])
    forwarded = headers.get("x-forwarded-for")
    if not forwarded or not settings.TRUSTED_PROXIES:
        return peer
    # All lines count: a proxy may add its own line to those that arrived.
    return networks.client_address(peer, forwarded, settings.TRUSTED_PROXIES)


def _refused(error: GatewayError, path: str) -> Response:
    """Return an error response that closes the connection, because the body may not have been read."""
    endpoint = endpoint_for_errors(path)
    headers = [*JSON, *endpoint.id_headers(str(new_id())), *error.headers, *CLOSE]
    return Response(status=error.status, headers=headers, body=endpoint.error_body(error))


def render_rejection(rejection: Rejection) -> tuple[Headers, bytes]:
    """Return headers and body of what the server refuses by itself, and count it."""
    metrics.answered("unread", "", rejection.status)
    kind = GatewayError if rejection.status >= 500 else BadRequest
    error = kind(rejection.message, rejection.code, status=rejection.status)
    return error.headers, error.body()
