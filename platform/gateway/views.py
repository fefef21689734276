"""The same journey as a Django view, for ``manage.py runserver`` and wherever Django must see the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from gateway.errors import BodyTooLarge
from gateway.messages import JSON, Incoming, Outgoing
from gateway.runtime import Runtime, start

_runtimes: dict[asyncio.AbstractEventLoop, Runtime] = {}


@csrf_exempt
async def journey(request: HttpRequest) -> HttpResponseBase:
    """Answer one request under ``/v1/``."""
    try:
        body = request.body
    except RequestDataTooBig:
        error = BodyTooLarge("The body is larger than allowed.", "body_too_large")
        return _response(Outgoing(status=error.status, headers=JSON, body=error.body()))
    incoming = Incoming(
        method=request.method or "GET",
        path=request.path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=body,
    )
    return _response(await runtime().pipeline.handle(incoming))


def runtime() -> Runtime:
    """Return this event loop's runtime; a server without lifespan events starts it with its first request."""
    loop = asyncio.get_running_loop()
    if loop not in _runtimes:
        _runtimes[loop] = start("view")
    return _runtimes[loop]


def _response(outgoing: Outgoing) -> HttpResponseBase:
    response: HttpResponseBase
    if outgoing.stream is None:
        response = HttpResponse(outgoing.body, status=outgoing.status)
    else:
        response = StreamingHttpResponse(_closing(outgoing, outgoing.stream), status=outgoing.status)
    for name, value in outgoing.headers:
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response


async def _closing(outgoing: Outgoing, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Django cancels a stream whose client left; what it held is let go here."""
    try:
        async for piece in stream:
            yield piece
    finally:
        outgoing.on_close()
