"""The process that serves the gateway's HTTP: ``python -m hearth.gateway_server``.

Several gateways of a host listen on one port, and the kernel distributes new connections among them. The process runs
``hearth.asgi``. After SIGTERM it ends when the last running response is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from importlib import import_module
from typing import Any

import click
import uvloop

from gateway.server.server import Application, Server

APPLICATION = "hearth.asgi:application"
#: Connections that the kernel queues until they are accepted.
BACKLOG = 2048
TIMEOUT_CHECK_SECONDS = 1.0
#: Time in which requests that are aborted after the grace record their usage.
ABORT_SECONDS = 1.0


class Lifespan:
    """The start-up and shutdown of an ASGI application."""

    def __init__(self, application: Application) -> None:
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task = asyncio.ensure_future(application({"type": "lifespan"}, self._events.get, self._replies.put))

    async def start(self) -> None:
        """Start the application. Raises what its start-up raises, or RuntimeError when it reports a failure."""
        await self._run("lifespan.startup")

    async def stop(self) -> None:
        """Stop the application. Raises what its shutdown raises, or RuntimeError when it reports a failure."""
        await self._run("lifespan.shutdown")
        await self._task

    async def _run(self, event: str) -> None:
        self._events.put_nowait({"type": event})
        pending = asyncio.ensure_future(self._replies.get())
        await asyncio.wait((pending, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not pending.done():
            pending.cancel()
            self._task.result()
            raise RuntimeError(f"the application ended at {event}")
        reply = pending.result()
        if reply["type"] != f"{event}.complete":
            raise RuntimeError(f"the application failed at {event}: {reply.get('message', '')}")


async def serve(server: Server, listener: socket.socket, *, grace_seconds: float) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish for at most ``grace_seconds``.

    Raises what the application's start-up raises.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    lifespan = Lifespan(server.application)
    await lifespan.start()
    checking = asyncio.ensure_future(_check_timeouts(server))
    try:
        listening = await loop.create_server(server.accept, sock=listener, backlog=BACKLOG)
        await stop.wait()
        listening.close()
        server.close()
        if not await _is_over(server, within_seconds=grace_seconds):
            server.abort()
            await _is_over(server, within_seconds=ABORT_SECONDS)
    finally:
        checking.cancel()
        await lifespan.stop()


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket on the first address of ``host``; other processes may share its port. Raises OSError."""
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
        await asyncio.sleep(TIMEOUT_CHECK_SECONDS)
        await server.check_timeouts()


@click.command()
@click.option("--host", required=True, help="Address to listen on.")
@click.option("--port", required=True, type=int, help="Port to listen on, shared with other gateways.")
@click.option("--connections", required=True, type=int, help="Connections at once; further ones are answered 503.")
@click.option("--grace-seconds", required=True, type=float, help="Time for running requests after SIGTERM.")
@click.argument("application", default=APPLICATION)
def main(host: str, port: int, connections: int, grace_seconds: float, application: str) -> None:
    """Serve an ASGI APPLICATION, by default the gateway."""
    module, _, name = application.partition(":")
    served = getattr(import_module(module), name)
    from django.conf import settings  # configured by importing the application

    from gateway.asgi import render_rejection
    from tenants import networks

    listener = listen(host, port)
    server = Server(
        served,
        render=render_rejection,
        most_connections=connections,
        send_timeout_seconds=settings.SEND_TIMEOUT_SECONDS,
        client_of=lambda address: (
            "" if networks.contains(settings.TRUSTED_PROXIES, address) else networks.client_network(address)
        ),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(server, listener, grace_seconds=grace_seconds))


if __name__ == "__main__":
    main()
