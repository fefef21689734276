"""An engine's HTTP surface that says whatever a test wants it to say: the awkward answers real engines seldom give."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from gateway.wire.table import ENDPOINTS

Say = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 4}}
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "demo"}


class ScriptedEngine:
    """Listens on a free port; remembers the bodies it got."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        #: Requests whose client went before the answer was complete.
        self.abandoned = 0
        self.port = 0
        self._runner = self._new_runner()

    async def start(self) -> None:
        """Begin to listen; a stopped engine does so on another port."""
        self._runner = self._new_runner()
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close every connection and the port."""
        await self._runner.cleanup()

    def _new_runner(self) -> web.AppRunner:
        return web.AppRunner(self._app(), handler_cancellation=True, shutdown_timeout=0)

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        for wire in ENDPOINTS.values():
            app.router.add_post(wire.engine_path, self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = orjson.loads(await request.read())
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        try:
            return await self.say(request, body)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise


def answer(text: str = "Hello", **changes: Any) -> dict[str, Any]:
    """Return a whole chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE, **changes}


def delta(text: str, **changes: Any) -> dict[str, Any]:
    """Return a chunk with some text."""
    return chunk({"index": 0, "delta": {"content": text}, "finish_reason": None, **changes})


def chunk(*choices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a chunk."""
    return {**HEAD, "object": "chat.completion.chunk", "choices": list(choices), **changes}


#: "Hello" in two tokens, its end and its usage.
CHUNKS = [
    chunk({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}),
    delta("Hel"),
    delta("lo"),
    chunk({"index": 0, "delta": {}, "finish_reason": "stop"}),
    chunk(usage=USAGE),
]


def events(chunks: list[dict[str, Any]] = CHUNKS, *, done: bool = True) -> list[bytes]:
    """Return chunks as server-sent events."""
    told = [b"data: " + orjson.dumps(one) + b"\n\n" for one in chunks]
    return [*told, b"data: [DONE]\n\n"] if done else told


async def hello(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Say hello, streamed or not, as asked."""
    if body.get("stream"):
        return await stream(request, events())
    return web.json_response(answer())


def after(released: asyncio.Event) -> Say:
    """Say hello once it is allowed."""

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await released.wait()
        return await hello(request, body)

    return say


def saying(document: Any, status: int = 200) -> Say:
    """Answer with this JSON, or these bytes."""

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        raw = document if isinstance(document, bytes) else orjson.dumps(document)
        return web.Response(body=raw, status=status, content_type="application/json")

    return say


def streaming(pieces: list[bytes], *, pause_seconds: float = 0.0, cut: bool = False, then_wait: bool = False) -> Say:
    """Stream these bytes; then end, cut the connection, or say nothing more."""

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, pieces, pause_seconds=pause_seconds, cut=cut, then_wait=then_wait)

    return say


async def hang_up(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Close the connection without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def silence(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(3600)
    return web.Response()


async def stream(
    request: web.Request,
    pieces: list[bytes],
    *,
    pause_seconds: float = 0.0,
    cut: bool = False,
    then_wait: bool = False,
) -> web.StreamResponse:
    """Write the pieces as an event stream."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(pause_seconds)
    if then_wait:
        await asyncio.sleep(3600)
    if cut:
        await asyncio.sleep(0.2)  # an aborted connection takes along what its reader has not read yet
        assert request.transport is not None
        request.transport.abort()
        return response
    await response.write_eof()
    return response


def text_of(told: list[bytes]) -> str:
    """Return the text that chunks tell."""
    chunks = [orjson.loads(event.removeprefix(b"data: ")) for event in told if event.startswith(b"data: {")]
    return "".join(c["delta"].get("content") or "" for one in chunks for c in one.get("choices", ()))
