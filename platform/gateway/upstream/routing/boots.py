"""Describe to the router the engines that run."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from routing.router import Boot
from workers.serving.endpoints import Endpoint


def of(endpoints: Iterable[Endpoint]) -> dict[UUID, Boot]:
    """Return what each engine says of its caches, by replica."""
    return {
        each.replica_id: Boot(
            generation=each.generation, cache_tokens=each.cache_tokens, host_cache_tokens=each.host_cache_tokens
        )
        for each in endpoints
    }
