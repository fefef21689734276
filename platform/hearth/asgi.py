"""The ASGI application of every web role, dispatched by path.

``gateway`` serves ``/v1/`` with the raw application and no pages; ``portal`` serves Django and Channels, and below
``/v1/`` only ``organization``; ``all`` (runserver, tests) serves everything through Django.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")

import django

django.setup(set_prefix=False)

from django.conf import settings
from django.urls import get_resolver

import hearth.celery  # noqa: F401 - sending a task needs the configured app
from gateway.asgi import GatewayApp
from gateway.cors import CrossOrigin
from gateway.errors import NotFound
from gateway.pipeline import runtime
from hearth.health import web_roles
from hearth.instance import file_limits

#: The garbage collector's first threshold: containers allocated and not yet freed. Python's is 700.
YOUNG_OBJECTS = 50_000
#: Longest time to read one request body, so that a slow sender does not occupy the gateway.
BODY_TIMEOUT_SECONDS = 30.0
#: How long a gateway waits for its first snapshot before it listens all the same.
FIRST_SNAPSHOT_SECONDS = 10.0
READY_POLL_SECONDS = 0.02
#: Needs no key and says nothing but whether the gateway serves. The health pages are on a port of their own.
HEALTH_PATH = "/health"


class GatewayRole:
    """Serves ``/v1/`` only; keeps the gateway's runtime between lifespan start-up and shutdown."""

    def __init__(self) -> None:
        self._runtime: runtime.Runtime | None = None
        self._gateway = GatewayApp(
            lambda: self._running().pipeline,
            max_body_bytes=settings.MAX_BODY_BYTES,
            body_timeout_seconds=BODY_TIMEOUT_SECONDS,
            send_timeout_seconds=settings.SEND_TIMEOUT_SECONDS,
            cross_origin=CrossOrigin(settings.CORS_ORIGINS),
        )
        self._health = web_roles.GatewayHealth(self._gateway, lambda: self._runtime, self._running)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http" and scope["path"].startswith("/v1/"):
            await self._gateway(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == HEALTH_PATH and scope["method"] in {"GET", "HEAD"}:
            await _answer(send, 200 if self._health.is_ready() else 503)
        else:
            await wrong_port(scope, receive, send)

    def _running(self) -> runtime.Runtime:
        if self._runtime is None:  # a server that sends no lifespan events
            self._runtime = runtime.start("gateway")
        return self._runtime

    async def _until_ready(self) -> None:
        """Wait until requests can be served, so that a process listens beside others only then; not for an outage."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SNAPSHOT_SECONDS):
                while not self._health.is_ready():  # noqa: ASYNC110 - the snapshot comes from another thread
                    await asyncio.sleep(READY_POLL_SECONDS)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                file_limits.allow(settings.CONNECTIONS)
                heartbeat = self._health.start()
                self._running()
                await self._until_ready()
                relax_garbage_collector()
                await send({"type": "lifespan.startup.complete"})
            else:
                heartbeat.cancel()
                if self._runtime is not None:
                    await self._runtime.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


class PortalRole:
    """Serves Django's pages and the live updates; with ``serves_inference`` also ``/v1/``, through Django."""

    def __init__(self, *, serves_inference: bool) -> None:
        from channels.auth import AuthMiddlewareStack
        from channels.routing import URLRouter
        from channels.security.websocket import AllowedHostsOriginValidator
        from django.core.asgi import get_asgi_application

        from portal.access.requests.load_limits import LoadLimits
        from portal.access.requests.paths import is_inference
        from portal.routing import websocket_urlpatterns

        self._serves_inference = serves_inference
        self._is_inference = is_inference
        self._django = get_asgi_application()
        websockets = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))
        self._pages = LoadLimits(self._django)
        self._websockets = LoadLimits(websockets)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await self._websockets(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif not self._is_inference(scope["path"]):
            await self._pages(scope, receive, send)
        elif self._serves_inference:
            await self._django(scope, receive, send)
        else:
            await wrong_port(scope, receive, send)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        heartbeat: asyncio.Task[None] | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                get_resolver().url_patterns  # noqa: B018 - loads every view
                relax_garbage_collector()
                # A process with every role has no port for health pages.
                heartbeat = None if self._serves_inference else web_roles.start_portal()
            elif heartbeat is not None:
                heartbeat.cancel()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def relax_garbage_collector() -> None:
    """Exclude the objects of start-up from garbage collection, and collect those of requests less often.

    A full collection of a gateway's 100,000 objects blocked every request for 60 to 360 ms, and the collections of
    young objects took 4 % of a busy one's time. One of a portal's 290,000 took 180 ms, in every sixth page of many
    rows. A request leaves few cycles behind, so there is little to collect later.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


async def _answer(send: Any, status: int) -> None:
    """Answer /health as engines do: by the status, for load balancers and clients that know nothing else."""
    body = b'{"status":"ok"}' if status == 200 else b'{"status":"unavailable"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def wrong_port(scope: Any, receive: Any, send: Any) -> None:
    """Answer that another port serves the path: the gateway serves /v1/, the portal everything else."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    error = NotFound(
        f"Nothing is served at {scope['path']} on this port. /v1/ is on the gateway's port, "
        "/portal/, /api/v1/ and /v1/organization/ are on the next one.",
        "unknown_path",
    )
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body()})


application = GatewayRole() if settings.ROLE == "gateway" else PortalRole(serves_inference=settings.ROLE == "all")
