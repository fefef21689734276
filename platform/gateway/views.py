"""The same journey as a Django view, for ``manage.py runserver`` and wherever Django must see the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from functools import partial

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import async_only_middleware
from django.views.decorators.csrf import csrf_exempt

from gateway.errors import BodyTooLarge
from gateway.loop_thread import Background
from gateway.pipeline.handler import Pipeline
from gateway.protocols.endpoint_table import speaking
from gateway.request import JSON, Departure, Incoming, Outgoing
from gateway.streaming.sender import run_on
from tenants import networks

#: Under WSGI, and in tests, each request has a loop of its own: the journey must outlive it.
background = Background("view")


Get = Callable[[HttpRequest], Awaitable[HttpResponseBase]]

#: Where a request has its stream, for :func:`closing`.
RELAY = "gateway.streaming.engine_stream"


@async_only_middleware
def closing(get_response: Get) -> Get:
    """Close a stream whose client leaves while other middleware has it: Django drops such a response unclosed."""

    async def closing_middleware(request: HttpRequest) -> HttpResponseBase:
        try:
            return await get_response(request)
        except asyncio.CancelledError:
            if RELAY in request.META:
                request.META[RELAY].close()
            raise

    return closing_middleware


@csrf_exempt
async def journey(request: HttpRequest) -> HttpResponseBase:
    """Answer one request under ``/v1/``."""
    try:
        body = request.body
    except RequestDataTooBig:
        error = BodyTooLarge("The body is larger than allowed.", "body_too_large")
        body = speaking(request.path).error_body(error)
        return _response(request, Outgoing(status=error.status, headers=JSON, body=body), Departure())
    incoming = Incoming(
        method=request.method or "GET",
        path=request.path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=body,
        client=networks.client_address(
            request.META.get("REMOTE_ADDR", ""), request.headers.get("x-forwarded-for", ""), settings.TRUSTED_PROXIES
        ),
    )
    journeying = _Journey(incoming)
    try:
        outgoing = await asyncio.shield(asyncio.wrap_future(background.journey(journeying.run)))
    except asyncio.CancelledError:
        background.run(journeying.leave)
        raise
    return _response(request, outgoing, incoming.departure)


class _Journey:
    """One request on the journey's loop, where all of this runs."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._task: asyncio.Task[Outgoing] | None = None
        self._left = False

    async def run(self, pipeline: Pipeline) -> Outgoing:
        """Answer the request. A task of its own, because a cancelled Future of a thread forgets what was answered."""
        if self._left:
            raise asyncio.CancelledError
        self._task = asyncio.create_task(pipeline.handle(self._incoming))
        return await self._task

    async def leave(self) -> None:
        """Let the request go on without its client, or stop it if nobody else needs its answer."""
        self._left = True
        if self._task is None:
            return
        departure = self._incoming.departure
        departure.stop_with(self._stop)
        departure.leave()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            await run_on(self._task.result(), departure)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _response(request: HttpRequest, outgoing: Outgoing, departure: Departure) -> HttpResponseBase:
    response: HttpResponseBase
    if outgoing.stream is None:
        response = HttpResponse(outgoing.body, status=outgoing.status)
    else:
        relay = _Relay(outgoing, outgoing.stream, departure)
        request.META[RELAY] = relay
        response = StreamingHttpResponse(relay, status=outgoing.status)
    for name, value in outgoing.headers:
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response


def _cancel(work: Future[bytes | None]) -> None:
    work.cancel()


class _Relay:
    """A stream of the journey's loop, read on another. :meth:`close` is called however the response ends."""

    def __init__(self, outgoing: Outgoing, stream: AsyncIterator[bytes], departure: Departure) -> None:
        self._outgoing = outgoing
        self._stream = stream
        self._departure = departure
        #: The next piece, while it is awaited.
        self._coming: Future[bytes | None] | None = None
        self._closed = False

    @property
    def _every_seconds(self) -> float | None:
        return self._outgoing.heartbeat.every_seconds if self._outgoing.heartbeat else None

    def _heartbeat(self) -> bytes:
        return self._outgoing.heartbeat.event() if self._outgoing.heartbeat else b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self._coming = background.run(lambda: anext(self._stream, None))
            coming = asyncio.wrap_future(self._coming)
            while not (await asyncio.wait({coming}, timeout=self._every_seconds))[0]:
                yield self._heartbeat()
            piece = coming.result()
            self._coming = None
            if piece is None:
                return
            yield piece

    def close(self) -> None:
        """Let go of what the stream holds, or let it go on for those who follow it. A second call does nothing."""
        if self._closed:
            return
        self._closed = True

        async def let_go() -> None:
            coming = self._coming
            if coming is not None:
                self._departure.stop_with(partial(_cancel, coming))
            self._departure.leave()
            if coming is not None:
                await asyncio.wait({asyncio.wrap_future(coming)})
            await run_on(self._outgoing, self._departure)

        background.run(let_go)
