"""The ASGI application of every web role, dispatched by path.

``gateway`` answers ``/v1/`` with the raw application and sends browsers to the portal; ``portal`` serves Django and
Channels; ``all`` (runserver, tests) serves everything through Django.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")

from django.conf import settings
from django.core.asgi import get_asgi_application

django_application = get_asgi_application()

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator

from gateway import runtime
from gateway.app import GatewayApp
from gateway.errors import NotFound
from portal.routing import websocket_urlpatterns

websockets = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))


class Application:
    """One process's application; holds the gateway's runtime between lifespan start and shutdown."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._runtime: runtime.Runtime | None = None
        self._gateway = GatewayApp(
            lambda: self._running().pipeline,
            max_body_bytes=settings.MAX_BODY_BYTES,
            body_timeout_seconds=settings.BODY_TIMEOUT_SECONDS,
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._lifespan(receive, send)
        elif kind == "websocket":
            await websockets(scope, receive, send)
        elif self._role == "gateway":
            await (self._gateway if scope["path"].startswith("/v1/") else _elsewhere)(scope, receive, send)
        elif self._role == "portal" and scope["path"].startswith("/v1/"):
            await _elsewhere(scope, receive, send)
        else:
            await django_application(scope, receive, send)

    def _running(self) -> runtime.Runtime:
        if self._runtime is None:  # a server that sends no lifespan events
            self._runtime = runtime.start(self._role)
        return self._runtime

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if self._role == "gateway":
                    self._running()
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._runtime is not None:
                    await self._runtime.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _elsewhere(scope: Any, receive: Any, send: Any) -> None:
    """Say that the path belongs to the other process: /v1/ is the gateway's, everything else the portal's."""
    error = NotFound(
        f"Nothing is served at {scope['path']} on this port: /v1/ is on the gateway's, "
        "/portal/ and /api/v1/ are on the next one.",
        "unknown_path",
    )
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body()})


application = Application(settings.ROLE)
