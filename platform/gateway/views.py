"""The same journey as a Django view, for ``manage.py runserver`` and wherever Django must see the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from gateway.background import Background
from gateway.errors import BodyTooLarge
from gateway.messages import JSON, Incoming, Outgoing
from gateway.wire.table import speaking
from tenants import networks

#: Under WSGI, and in tests, each request has a loop of its own: the journey must outlive it.
background = Background("view")


@csrf_exempt
async def journey(request: HttpRequest) -> HttpResponseBase:
    """Answer one request under ``/v1/``."""
    try:
        body = request.body
    except RequestDataTooBig:
        error = BodyTooLarge("The body is larger than allowed.", "body_too_large")
        return _response(Outgoing(status=error.status, headers=JSON, body=speaking(request.path).error_body(error)))
    incoming = Incoming(
        method=request.method or "GET",
        path=request.path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=body,
        client=networks.client_address(
            request.META.get("REMOTE_ADDR", ""), request.headers.get("x-forwarded-for", ""), settings.TRUSTED_PROXIES
        ),
    )
    return _response(await asyncio.wrap_future(background.journey(lambda pipeline: pipeline.handle(incoming))))


def _response(outgoing: Outgoing) -> HttpResponseBase:
    response: HttpResponseBase
    if outgoing.stream is None:
        response = HttpResponse(outgoing.body, status=outgoing.status)
    else:
        response = StreamingHttpResponse(_Relay(outgoing, outgoing.stream), status=outgoing.status)
    for name, value in outgoing.headers:
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response


class _Relay:
    """A stream of the journey's loop, read on another. Django calls :meth:`close` however the response ends."""

    def __init__(self, outgoing: Outgoing, stream: AsyncIterator[bytes]) -> None:
        self._outgoing = outgoing
        self._stream = stream

    @property
    def _every_seconds(self) -> float | None:
        return self._outgoing.heartbeat.every_seconds if self._outgoing.heartbeat else None

    def _heartbeat(self) -> bytes:
        return self._outgoing.heartbeat.event() if self._outgoing.heartbeat else b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            coming = asyncio.wrap_future(background.run(lambda: anext(self._stream, None)))
            try:
                while not (await asyncio.wait({coming}, timeout=self._every_seconds))[0]:
                    yield self._heartbeat()
            finally:
                coming.cancel()  # nothing once it is done
            piece = coming.result()
            if piece is None:
                return
            yield piece

    def close(self) -> None:
        """Let go of what the stream holds."""

        async def let_go() -> None:
            self._outgoing.on_close()

        background.run(let_go)
