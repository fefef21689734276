"""Let pages of chosen origins call the gateway from a browser (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol).

Nothing is sent with cookies: the API key is a header that the page sets itself.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import Any

from gateway.server.server import Application
from gateway.streaming.sender import Send

#: How long a browser may remember the answer to its preflight request, in seconds.
REMEMBERED_SECONDS = 600
_PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, HEAD, POST"),
    (b"access-control-max-age", str(REMEMBERED_SECONDS).encode()),
]
_ACTUAL = [(b"access-control-expose-headers", b"*"), (b"vary", b"Origin")]


class CrossOrigin:
    """An ASGI application that answers preflight requests of allowed origins, and marks responses to them."""

    def __init__(self, application: Application, origins: Collection[str]) -> None:
        self._application = application
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Serve one request."""
        headers = dict(scope["headers"])
        origin: bytes | None = headers.get(b"origin")
        if origin is None or not (origin in self._origins or b"*" in self._origins):
            await self._application(scope, receive, send)
            return
        allowed = (b"access-control-allow-origin", origin)
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            asked = headers.get(b"access-control-request-headers", b"authorization, content-type")
            answer = [allowed, *_PREFLIGHT, (b"access-control-allow-headers", asked), (b"vary", b"Origin")]
            await send({"type": "http.response.start", "status": 204, "headers": answer})
            await send({"type": "http.response.body", "body": b""})
            return

        async def marked(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], allowed, *_ACTUAL]
            await send(message)

        await self._application(scope, receive, marked)
