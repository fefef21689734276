"""Read an engine's KV cache from its metrics: vLLM's ``cache_config_info``, whose labels are its configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator

_CACHE = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(?<!\w)(block_size|num_gpu_blocks|kv_cache_size_tokens)="(\d+)"')


def cache_tokens(page: str) -> int | None:
    """Return the size of the KV cache in tokens; engines that run data-parallel each report the sum."""
    sizes = [0]
    for found in _configurations(page):
        blocks = found.get("block_size", 0) * found.get("num_gpu_blocks", 0)
        sizes.append(found.get("kv_cache_size_tokens") or blocks)
    return max(sizes) or None


def block_size_tokens(page: str) -> int | None:
    """Return how many tokens a block of the KV cache has; None if the page does not say."""
    return next((found["block_size"] for found in _configurations(page) if found.get("block_size")), None)


def _configurations(page: str) -> Iterator[dict[str, int]]:
    for labels in _CACHE.findall(page):
        yield {name: int(value) for name, value in _LABEL.findall(labels)}
