"""Let vLLM's answers name a LoRA adapter as its clients do.

Hearth loads each revision of an adapter under a name of its own, ``chat:tone@1f2e3d4c5b6a``, so that two revisions can
be there at once. vLLM would write that name into every answer and every event of a stream. The driver gives vLLM this
class with ``--middleware``. Only the standard library is used.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: As ``catalogue.adapters`` writes it.
REVISION_MARK = "@"

log = logging.getLogger(__name__)


class NameAdapters:
    """ASGI middleware that changes how vLLM 0.32 names adapters, before it answers the first request."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._is_done = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_done and scope["type"] == "http":
            self._is_done = True
            try:
                _name_publicly(scope["app"].state.openai_serving_models)
            except Exception:  # another version of vLLM; answers then show the revision too
                log.exception("adapters are named with their revision")
        await self._app(scope, receive, send)


def _name_publicly(models: Any) -> None:
    """Let the server's models name an adapter without its revision in answers; requests name it with that."""
    original = models.model_name

    def model_name(lora_request: Any = None) -> str:
        name: str = original(lora_request)
        return name if lora_request is None else name.partition(REVISION_MARK)[0]

    models.model_name = model_name
