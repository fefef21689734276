"""The least a Python gateway can do, as a ceiling for Hearth: granian, aiohttp, and nothing that can be left out.

It compares the key's hash, parses the request, sets one field, forwards it, and reads the usage of a whole answer.
There are no tenants, limits, cache, routing, retries or records, and a stream is passed on unread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp
import orjson

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

KEY_VARIABLE = "BENCH_KEY"
UPSTREAM_VARIABLE = "BENCH_UPSTREAM"
JSON_HEADERS = [(b"content-type", b"application/json")]


class BareProxy:
    """An ASGI application with one HTTP session, which is opened by the first request."""

    def __init__(self, upstream: str, key: str) -> None:
        self._upstream = upstream
        self._key_hash = hashlib.sha256(f"Bearer {key}".encode()).digest()
        self._session: aiohttp.ClientSession | None = None
        self.tokens = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Forward one request."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        if hashlib.sha256(headers.get(b"authorization", b"")).digest() != self._key_hash:
            await _answer(send, 401, b"{}")
            return
        request = orjson.loads(await _body(receive))
        request["cache_salt"] = "bench"
        async with self._open_session().post(
            self._upstream + scope["path"], data=orjson.dumps(request), headers={"content-type": "application/json"}
        ) as response:
            if request.get("stream"):
                await _pass_on(response, send)
                return
            content = await response.read()
            self.tokens += orjson.loads(content)["usage"]["total_tokens"]
            await _answer(send, response.status, content)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
                skip_auto_headers=("user-agent", "accept-encoding"),
            )
        return self._session


async def _body(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


async def _pass_on(response: aiohttp.ClientResponse, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    async for piece in response.content.iter_any():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [*JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


application = BareProxy(os.environ.get(UPSTREAM_VARIABLE, ""), os.environ.get(KEY_VARIABLE, ""))
