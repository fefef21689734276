"""Add to vLLM's metrics how many requests the engine runs at once, which vLLM itself does not publish.

Gateways let further requests wait. The driver gives vLLM this class with ``--middleware``. An engine that does not say
how many it runs serves as before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

METRIC = "hearth_engine_max_requests"

log = logging.getLogger(__name__)


class PublishLimits:
    """ASGI middleware that registers the metric before the metrics are read for the first time."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._is_registered = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_registered and scope["type"] == "http" and scope["path"].startswith("/metrics"):
            self._is_registered = True
            try:
                _register(scope["app"].state.engine_client.vllm_config)
            except Exception:  # another version of vLLM may have another configuration
                log.exception("%s is not published", METRIC)
        await self._app(scope, receive, send)


def _register(config: Any) -> None:
    """Publish the requests of all the ranks between which vLLM spreads requests."""
    from prometheus_client import Gauge

    gauge = Gauge(METRIC, "Requests that the engine runs at once.", multiprocess_mode="max")
    gauge.set(config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size)
