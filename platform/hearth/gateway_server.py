"""The process that serves the gateway's HTTP: ``python -m hearth.gateway_server``.

It listens beside other gateways of its host on one port, which the kernel shares new connections out of, runs
``hearth.asgi``, and ends, when it is told to, with the last answer that it has begun.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
from importlib import import_module
from typing import Any

import uvloop

from gateway.server.server import Application, Server

APPLICATION = "hearth.asgi:application"
#: Connections that the kernel holds until they are taken.
BACKLOG = 2048
LOOK_SECONDS = 1.0
#: What is stopped after its grace may take so long to write down what it has used, seconds.
ABORT_SECONDS = 1.0


class Lifespan:
    """What an ASGI application does before the first request and after the last."""

    def __init__(self, application: Application) -> None:
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task = asyncio.ensure_future(application({"type": "lifespan"}, self._said.get, self._heard.put))

    async def start(self) -> None:
        """Have it start. Raises what it raises."""
        await self._tell("lifespan.startup")

    async def stop(self) -> None:
        """Have it end. Raises what it raises."""
        await self._tell("lifespan.shutdown")
        await self._task

    async def _tell(self, event: str) -> None:
        self._said.put_nowait({"type": event})
        heard = asyncio.ensure_future(self._heard.get())
        await asyncio.wait((heard, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not heard.done():
            heard.cancel()
            self._task.result()
            raise RuntimeError(f"the application ended at {event}")
        answer = heard.result()
        if answer["type"] != f"{event}.complete":
            raise RuntimeError(f"the application failed at {event}: {answer.get('message', '')}")


async def serve(server: Server, listener: socket.socket, *, grace_seconds: float) -> None:
    """Serve until SIGTERM or SIGINT; then give what runs ``grace_seconds``. Raises what its start raises."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    lifespan = Lifespan(server.application)
    await lifespan.start()
    checking = asyncio.ensure_future(_check_timeouts(server))
    try:
        listening = await loop.create_server(server.accept, sock=listener, backlog=BACKLOG)
        await told.wait()
        listening.close()
        server.close()
        if not await _is_over(server, within_seconds=grace_seconds):
            server.abort()
            await _is_over(server, within_seconds=ABORT_SECONDS)
    finally:
        checking.cancel()
        await lifespan.stop()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that others may listen beside, on the first address of ``host``. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


async def _is_over(server: Server, *, within_seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            await server.over()
            return True
    return False


async def _check_timeouts(server: Server) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        server.check_timeouts()


def main() -> None:
    """Serve an application as the options say."""
    parser = argparse.ArgumentParser(prog="python -m hearth.gateway_server", description=__doc__.splitlines()[0])
    parser.add_argument("--host", required=True, help="address to listen on")
    parser.add_argument("--port", required=True, type=int, help="port to listen on, shared with other gateways")
    parser.add_argument("--connections", required=True, type=int, help="most connections at a time; more are told 503")
    parser.add_argument("--grace-seconds", required=True, type=float, help="for what runs, when it is told to end")
    parser.add_argument("application", nargs="?", default=APPLICATION, help=f"ASGI application ({APPLICATION})")
    options = parser.parse_args()
    module, _, name = options.application.partition(":")
    application = getattr(import_module(module), name)
    from django.conf import settings  # configured by importing the application

    from gateway.asgi import render_rejection

    listener = listen(options.host, options.port)
    server = Server(
        application,
        render=render_rejection,
        most_connections=options.connections,
        send_timeout_seconds=settings.SEND_TIMEOUT_SECONDS,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(server, listener, grace_seconds=options.grace_seconds))


if __name__ == "__main__":
    main()
