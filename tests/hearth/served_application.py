"""An ASGI application on the gateway's server, in a process of its own: ``python -m tests.hearth.served_application``.

Its arguments: the port, the seconds of grace, and how its start goes (``starts``, ``fails`` or ``raises``).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop

from gateway.server.server import Server
from hearth.gateway_server import listen, serve


class Application:
    """Answers with its process's word; on ``/v1/stream`` it says a piece and goes on until it is stopped."""

    def __init__(self, start: str) -> None:
        self._start = start

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection, or the process's life."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["path"] == "/v1/stream":
            await self._stream(send)
        else:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        if self._start == "raises":
            raise RuntimeError("the database is away")
        told = "failed" if self._start == "fails" else "complete"
        await send({"type": f"lifespan.startup.{told}", "message": "the database is away"})
        await receive()
        print("closed", flush=True)
        await send({"type": "lifespan.shutdown.complete"})

    async def _stream(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        try:
            await asyncio.Event().wait()
        finally:
            print("stopped", flush=True)


def main() -> None:
    """Serve as the arguments say."""
    port, grace_seconds, start = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    front = Server(
        Application(start),
        render=lambda rejection: ([], rejection.message.encode()),
        most_connections=100,
        send_timeout_seconds=60.0,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(front, listen("127.0.0.1", port), grace_seconds=grace_seconds))


if __name__ == "__main__":
    main()
