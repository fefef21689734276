"""Refuse every request to an engine that does not carry the engine's key, except ``/health``.

vLLM's own check covers ``/v1`` and a few other prefixes, so ``/invocations``, ``/tokenize`` and ``/metrics`` would
answer everybody who reaches the port. The driver gives vLLM this class with ``--middleware`` and this folder, which
contains nothing but such classes, as its import path. Only the standard library is used.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Tells nothing but that the engine lives; load balancers and probes send no key.
OPEN_PATH = "/health"
REFUSAL = json.dumps({"error": "Unauthorized"}).encode()
#: RFC 6455: the client violates the endpoint's policy. Before the handshake, servers answer 403 instead.
POLICY_VIOLATION = 1008


class RequireEngineKey:
    """ASGI middleware that wants ``Authorization: Bearer <VLLM_API_KEY>``. Raises RuntimeError if there is no key."""

    def __init__(self, app: Application) -> None:
        key = os.environ.get("VLLM_API_KEY", "")
        if not key:
            raise RuntimeError("VLLM_API_KEY is not set, so this engine would answer everybody")
        self._app = app
        self._expected = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"} or self._is_open(scope) or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            await _refuse(send)

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        return scope["type"] == "http" and path == OPEN_PATH

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = (given[0] if given else b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key, self._expected)


async def _refuse(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSAL)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSAL})
