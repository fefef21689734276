"""An ASGI application on the gateway's server, in a process of its own: ``python -m tests.hearth.served_application``.

Arguments: the port, the grace in seconds, and the outcome of its start-up (``starts``, ``fails`` or ``raises``).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop

from gateway.server.server import Server
from hearth.gateway_server import listen, serve

TICKS, TICK_SECONDS = 30, 0.1


class Application:
    """Answers ``ok``, and on ``/v1/port`` the port.

    On ``/v1/ticks`` it sends events for three seconds; on ``/v1/stream`` one chunk, then nothing until it is stopped.
    """

    def __init__(self, start: str) -> None:
        self._start = start

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection, or the lifespan of the process."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"] == "/v1/stream":
            await self._stream(send)
        elif scope["path"] == "/v1/ticks":
            await self._ticks(send)
        else:
            body = sys.argv[1].encode() if scope["path"] == "/v1/port" else b"ok"
            length = (b"content-length", b"%d" % len(body))
            await send({"type": "http.response.start", "status": 200, "headers": [length]})
            await send({"type": "http.response.body", "body": body})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        if self._start == "raises":
            raise RuntimeError("the database is unavailable")
        outcome = "failed" if self._start == "fails" else "complete"
        await send({"type": f"lifespan.startup.{outcome}", "message": "the database is unavailable"})
        await receive()
        print("closed", flush=True)
        await send({"type": "lifespan.shutdown.complete"})

    async def _ticks(self, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(TICKS):
            event = b"data: %d\n\n" % number
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(TICK_SECONDS)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _stream(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        try:
            await asyncio.Event().wait()
        finally:
            print("stopped", flush=True)


def main() -> None:
    """Serve with the arguments of the command line."""
    port, grace_seconds, start = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    server = Server(
        Application(start),
        render=lambda rejection: ([], rejection.message.encode()),
        most_connections=100,
        send_timeout_seconds=60.0,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(server, listen("127.0.0.1", port), grace_seconds=grace_seconds))


if __name__ == "__main__":
    main()
