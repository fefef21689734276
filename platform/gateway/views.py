"""The same journey as a Django view, for ``manage.py runserver`` and wherever Django must see the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from gateway.background import Background
from gateway.delivery import run_on
from gateway.errors import BodyTooLarge
from gateway.messages import JSON, Departure, Incoming, Outgoing
from gateway.wire.table import speaking
from tenants import networks

T = TypeVar("T")

#: Under WSGI, and in tests, each request has a loop of its own: the journey must outlive it.
background = Background("view")


@csrf_exempt
async def journey(request: HttpRequest) -> HttpResponseBase:
    """Answer one request under ``/v1/``."""
    try:
        body = request.body
    except RequestDataTooBig:
        error = BodyTooLarge("The body is larger than allowed.", "body_too_large")
        body = speaking(request.path).error_body(error)
        return _response(Outgoing(status=error.status, headers=JSON, body=body), Departure())
    incoming = Incoming(
        method=request.method or "GET",
        path=request.path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=body,
        client=networks.client_address(
            request.META.get("REMOTE_ADDR", ""), request.headers.get("x-forwarded-for", ""), settings.TRUSTED_PROXIES
        ),
    )
    answering = background.journey(lambda pipeline: pipeline.handle(incoming))
    try:
        outgoing = await asyncio.shield(asyncio.wrap_future(answering))
    except asyncio.CancelledError:
        background.run(lambda: _leave(incoming.departure, answering))
        raise
    return _response(outgoing, incoming.departure)


async def _leave(departure: Departure, answering: Future[Outgoing]) -> None:
    """Let a request go on without its client, or stop it if nobody else needs its answer."""
    departure.stop_with(partial(_cancel, answering))
    departure.leave()
    try:
        outgoing = await asyncio.wrap_future(answering)
    except asyncio.CancelledError:
        return
    await run_on(outgoing, departure)


def _cancel(work: Future[T]) -> None:
    work.cancel()


def _response(outgoing: Outgoing, departure: Departure) -> HttpResponseBase:
    response: HttpResponseBase
    if outgoing.stream is None:
        response = HttpResponse(outgoing.body, status=outgoing.status)
    else:
        response = StreamingHttpResponse(_Relay(outgoing, outgoing.stream, departure), status=outgoing.status)
    for name, value in outgoing.headers:
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response


class _Relay:
    """A stream of the journey's loop, read on another. Django calls :meth:`close` however the response ends."""

    def __init__(self, outgoing: Outgoing, stream: AsyncIterator[bytes], departure: Departure) -> None:
        self._outgoing = outgoing
        self._stream = stream
        self._departure = departure
        #: The next piece, while it is awaited.
        self._coming: Future[bytes | None] | None = None

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
        """Let go of what the stream holds, or let it go on for those who follow it."""

        async def let_go() -> None:
            coming = self._coming
            if coming is not None:
                self._departure.stop_with(partial(_cancel, coming))
            self._departure.leave()
            if coming is not None:
                await asyncio.wait({asyncio.wrap_future(coming)})
            await run_on(self._outgoing, self._departure)

        background.run(let_go)
