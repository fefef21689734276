"""The pipeline as a Django view, for ``manage.py runserver`` and Django's test client."""

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
from gateway.loop_thread import EventLoopThread
from gateway.pipeline.handler import Pipeline
from gateway.protocols.endpoint_table import endpoint_for_errors
from gateway.request import JSON, ClientDisconnect, Request, Response
from gateway.streaming.sender import NO_SNIFF, NO_STORE, run_on
from tenants import networks

#: Under WSGI and in tests each request has an event loop of its own, which the pipeline must outlive.
background = EventLoopThread("view")


Get = Callable[[HttpRequest], Awaitable[HttpResponseBase]]

#: The key of a request's stream in ``request.META``, for :func:`closing`.
STREAM = "gateway.streaming.engine_stream"


@async_only_middleware
def closing(get_response: Get) -> Get:
    """Close the stream of a client that disconnects inside middleware, where Django drops it unclosed."""

    async def closing_middleware(request: HttpRequest) -> HttpResponseBase:
        try:
            return await get_response(request)
        except asyncio.CancelledError:
            if STREAM in request.META:
                request.META[STREAM].close()
            raise

    return closing_middleware


@csrf_exempt
async def serve(request: HttpRequest) -> HttpResponseBase:
    """Serve one request under ``/v1/``."""
    try:
        body = request.body
    except RequestDataTooBig:
        error = BodyTooLarge("The body is too large. Send a smaller one.", "body_too_large")
        body = endpoint_for_errors(request.path).error_body(error)
        return _response(request, Response(status=error.status, headers=JSON, body=body), ClientDisconnect())
    gateway_request = Request(
        method=request.method or "GET",
        path=request.path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=body,
        client=networks.client_address(
            request.META.get("REMOTE_ADDR", ""), request.headers.get("x-forwarded-for", ""), settings.TRUSTED_PROXIES
        ),
    )
    run = _PipelineRun(gateway_request)
    try:
        gateway_response = await asyncio.shield(asyncio.wrap_future(background.run_on_pipeline(run.run)))
    except asyncio.CancelledError:
        background.run(run.disconnect)
        raise
    return _response(request, gateway_response, gateway_request.disconnect)


class _PipelineRun:
    """One request on the pipeline's loop, where all of this runs."""

    def __init__(self, gateway_request: Request) -> None:
        self._request = gateway_request
        self._task: asyncio.Task[Response] | None = None
        self._disconnected = False

    async def run(self, pipeline: Pipeline) -> Response:
        """Run the request, in a task of its own: a cancelled Future of a thread loses the result."""
        if self._disconnected:
            raise asyncio.CancelledError
        self._task = asyncio.create_task(pipeline.handle(self._request))
        return await self._task

    async def disconnect(self) -> None:
        """Continue the request without its client, or cancel it if it has no followers."""
        self._disconnected = True
        if self._task is None:
            return
        disconnect = self._request.disconnect
        disconnect.cancel_with(self._stop)
        disconnect.signal()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            await run_on(self._task.result(), disconnect)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _response(request: HttpRequest, gateway_response: Response, disconnect: ClientDisconnect) -> HttpResponseBase:
    response: HttpResponseBase
    if gateway_response.stream is None:
        response = HttpResponse(gateway_response.body, status=gateway_response.status)
    else:
        bridge = _StreamBridge(gateway_response, gateway_response.stream, disconnect)
        request.META[STREAM] = bridge
        response = StreamingHttpResponse(bridge, status=gateway_response.status)
    for name, value in gateway_response.headers:
        if name == b"connection":  # it is the server's to say, and WSGI refuses it
            continue
        response[name.decode("latin-1")] = value.decode("latin-1")
    for name, value in (NO_STORE, NO_SNIFF):
        response[name.decode()] = value.decode()
    return response


def _cancel(work: Future[bytes | None]) -> None:
    work.cancel()


class _StreamBridge:
    """A stream of the pipeline's loop, read on another. :meth:`close` is called however the response ends."""

    def __init__(self, gateway_response: Response, stream: AsyncIterator[bytes], disconnect: ClientDisconnect) -> None:
        self._response = gateway_response
        self._stream = stream
        self._disconnect = disconnect
        #: The next piece, while it is pending.
        self._next: Future[bytes | None] | None = None
        self._closed = False

    @property
    def _every_seconds(self) -> float | None:
        return self._response.heartbeat.every_seconds if self._response.heartbeat else None

    def _heartbeat(self) -> bytes:
        return self._response.heartbeat.event() if self._response.heartbeat else b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self._next = background.run(lambda: anext(self._stream, None))
            pending = asyncio.wrap_future(self._next)
            while not (await asyncio.wait({pending}, timeout=self._every_seconds))[0]:
                yield self._heartbeat()
            piece = pending.result()
            self._next = None
            if piece is None:
                return
            yield piece

    def close(self) -> None:
        """Close the stream, or let it run on for its followers. A second call does nothing."""
        if self._closed:
            return
        self._closed = True

        async def close_on_loop() -> None:
            pending = self._next
            if pending is not None:
                self._disconnect.cancel_with(partial(_cancel, pending))
            self._disconnect.signal()
            if pending is not None:
                await asyncio.wait({asyncio.wrap_future(pending)})
            await run_on(self._response, self._disconnect)

        background.run(close_on_loop)
