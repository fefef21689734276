"""Let pages of chosen origins call the gateway from a browser (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol).

Nothing is sent with cookies: the API key is a header that the page sets itself. Only requests with an ``origin`` header
come here, which browsers send and other clients do not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from gateway.request import Headers
from gateway.streaming.sender import Send

#: How long a browser may remember the answer to its preflight request, in seconds.
REMEMBERED_SECONDS = 600
#: A longer list of headers to allow is answered with the usual ones. SDKs in browsers name some 15 of their own.
LONGEST_ASKED = 1024
USUAL_HEADERS = "authorization, content-type"
_PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, HEAD, POST"),
    (b"access-control-max-age", str(REMEMBERED_SECONDS).encode()),
]
#: `*` exposes every header of a response to a request without cookies.
_ACTUAL: Headers = [(b"access-control-expose-headers", b"*"), (b"vary", b"Origin")]


class CrossOrigin:
    """The origins whose pages may call, and what their browsers are told."""

    def __init__(self, origins: Collection[str] = ()) -> None:
        self._origins = frozenset(origins)

    def allows(self, origin: str) -> bool:
        """Return whether pages of this origin may call."""
        return origin in self._origins or "*" in self._origins

    async def answer(self, method: str, headers: Mapping[str, str], send: Send) -> Send | None:
        """Answer a preflight request, without looking at a key, and return None.

        For any other request return what sends its response, marked for its page if that may read it.
        """
        origin = headers["origin"]
        if not self.allows(origin):
            return send
        allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
        if method != "OPTIONS" or "access-control-request-method" not in headers:
            return _marking([allowed, *_ACTUAL], send)
        asked = headers.get("access-control-request-headers", USUAL_HEADERS)
        if len(asked) > LONGEST_ASKED:
            asked = USUAL_HEADERS
        named = (b"access-control-allow-headers", asked.encode("latin-1"))
        answer = [allowed, *_PREFLIGHT, named, (b"vary", b"Origin")]
        await send({"type": "http.response.start", "status": 204, "headers": answer})
        await send({"type": "http.response.body", "body": b""})
        return None


def _marking(marks: Headers, send: Send) -> Send:
    async def marked(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *marks]
        await send(message)

    return marked
