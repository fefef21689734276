"""Add to vLLM's metrics what vLLM itself does not publish: requests that run at once, tokens that host memory holds.

The third is its longest context. Gateways let further requests wait, count on prompts in host memory, and lower limits
of new tokens to the context. The driver gives vLLM this class with ``--middleware``. An engine that says none of these
serves as before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_REQUESTS = "hearth_engine_max_requests"
HOST_TOKENS = "hearth_engine_host_cache_tokens"
CONTEXT_TOKENS = "hearth_engine_context_tokens"
#: Those that copy blocks to host memory of a size that they are given (``--kv-offloading-size``), of vLLM 0.32.
CONNECTORS = ("OffloadingConnector", "SimpleCPUOffloadConnector")

log = logging.getLogger(__name__)


class PublishLimits:
    """ASGI middleware that registers the metrics before the metrics are read for the first time."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._is_registered = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_registered and scope["type"] == "http" and scope["path"].startswith("/metrics"):
            self._is_registered = True
            config = scope["app"].state.engine_client.vllm_config
            for name, read in LIMITS.items():
                try:
                    _register(name, read(config))
                except Exception:  # another version of vLLM may have another configuration
                    log.exception("%s is not published", name)
        await self._app(scope, receive, send)


def max_requests(config: Any) -> int:
    """Return the requests of all the ranks between which vLLM spreads requests."""
    return int(config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size)


def host_cache_tokens(config: Any) -> int | None:
    """Return how many tokens all these ranks keep in host memory, or None if they keep none there.

    The size is that of all tensor-parallel workers of a rank together. Keys and values are those of every attention
    layer: a model with sliding windows needs less, so host memory may hold more than this.
    """
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector not in CONNECTORS:
        return None
    size = int(transfer.kv_connector_extra_config.get("cpu_bytes_to_use") or 0)
    return size // _bytes_per_token(config) * config.parallel_config.data_parallel_size or None


def context_tokens(config: Any) -> int:
    """Return the longest prompt and completion together, as the engine fitted it to its memory."""
    return int(config.model_config.max_model_len)


#: What is published, and from where.
LIMITS: dict[str, Callable[[Any], int | None]] = {
    MAX_REQUESTS: max_requests,
    HOST_TOKENS: host_cache_tokens,
    CONTEXT_TOKENS: context_tokens,
}


def _bytes_per_token(config: Any) -> int:
    from vllm.utils.torch_utils import get_dtype_size, get_kv_cache_torch_dtype

    model, parallel = config.model_config, config.parallel_config
    layers = model.get_num_layers_by_block_type(parallel, "attention") * parallel.pipeline_parallel_size
    number = get_dtype_size(get_kv_cache_torch_dtype(config.cache_config.cache_dtype, model.dtype))
    if model.use_mla:  # one vector for keys and values, the same in each worker, of which host memory has one
        return int(layers * model.get_head_size() * number)
    heads = model.get_num_kv_heads(parallel) * parallel.tensor_parallel_size
    return int(layers * 2 * heads * model.get_head_size() * number)


def _register(name: str, value: int | None) -> None:
    from prometheus_client import Gauge

    if value is not None:
        Gauge(name, "As Hearth reads it from the engine's configuration.", multiprocess_mode="max").set(value)
