"""The ASGI application of every web role, dispatched by path.

``gateway`` answers ``/v1/`` with the raw application and loads no page; ``portal`` serves Django and Channels;
``all`` (runserver, tests) serves everything through Django.
"""

from __future__ import annotations

import asyncio
import gc
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")

import django

django.setup(set_prefix=False)

from django.conf import settings

import hearth.celery  # noqa: F401 - whoever sends a task needs the app configured first
from gateway.asgi import GatewayApp
from gateway.errors import NotFound
from gateway.pipeline import runtime
from hearth.health import web_roles
from hearth.instance import file_limits

#: The garbage collector's first threshold in a gateway: containers made and not yet freed. Python's own is 700.
YOUNG_OBJECTS = 50_000
#: Longest time to read one request body, so that a slow sender does not occupy the gateway.
BODY_TIMEOUT_SECONDS = 30.0


class GatewayRole:
    """Serves ``/v1/`` only; holds the gateway's runtime between lifespan start and shutdown."""

    def __init__(self) -> None:
        self._runtime: runtime.Runtime | None = None
        self._gateway = GatewayApp(
            lambda: self._running().pipeline,
            max_body_bytes=settings.MAX_BODY_BYTES,
            body_timeout_seconds=BODY_TIMEOUT_SECONDS,
            send_timeout_seconds=settings.SEND_TIMEOUT_SECONDS,
        )
        self._vitals = web_roles.Gateway(self._gateway, lambda: self._runtime, self._running)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http" and scope["path"].startswith("/v1/"):
            await self._gateway(scope, receive, send)
        else:
            await elsewhere(scope, receive, send)

    def _running(self) -> runtime.Runtime:
        if self._runtime is None:  # a server that sends no lifespan events
            self._runtime = runtime.start("gateway")
        return self._runtime

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                file_limits.allow(settings.CONNECTIONS)
                beat = self._vitals.start()
                self._running()
                _collect_less()
                await send({"type": "lifespan.startup.complete"})
            else:
                beat.cancel()
                if self._runtime is not None:
                    await self._runtime.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


class PortalRole:
    """Serves Django's pages and the live updates; ``/v1/`` too, through Django, when it plays every role."""

    def __init__(self, *, serves_inference: bool) -> None:
        from channels.auth import AuthMiddlewareStack
        from channels.routing import URLRouter
        from channels.security.websocket import AllowedHostsOriginValidator
        from django.core.asgi import get_asgi_application

        from portal.routing import websocket_urlpatterns

        self._serves_inference = serves_inference
        self._django = get_asgi_application()
        self._websockets = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket":
            await self._websockets(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"].startswith("/v1/") and not self._serves_inference:
            await elsewhere(scope, receive, send)
        else:
            await self._django(scope, receive, send)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        beat: asyncio.Task[None] | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                # A process that plays every role has no port of its own for them.
                beat = None if self._serves_inference else web_roles.start_portal()
            elif beat is not None:
                beat.cancel()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def _collect_less() -> None:
    """Have the garbage collector leave alone what start-up made, and look less often at what requests make.

    All of it, 100,000 objects, held every request up for 60 to 360 ms each time, and the young ones took 4 % of a
    busy gateway's time. A request leaves no cycles behind, so that what is collected later is little.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    """Say that the path belongs to the other process: /v1/ is the gateway's, everything else the portal's."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    error = NotFound(
        f"Nothing is served at {scope['path']} on this port: /v1/ is on the gateway's, "
        "/portal/ and /api/v1/ are on the next one.",
        "unknown_path",
    )
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body()})


application = GatewayRole() if settings.ROLE == "gateway" else PortalRole(serves_inference=settings.ROLE == "all")
