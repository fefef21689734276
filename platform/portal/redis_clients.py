"""This process's Redis clients, which its threads share."""

from __future__ import annotations

from functools import cache
from threading import Lock

from redis import Redis

from tenants import redis_address

_making = Lock()


def client(url: str, timeout_seconds: float) -> Redis:
    """Return the one client of a URL.

    Threads that call this first at the same moment get the same client: a second one would be dropped, and would close
    its connections while a pipeline uses them.
    """
    with _making:
        return _client(url, timeout_seconds)


@cache
def _client(url: str, timeout_seconds: float) -> Redis:
    return redis_address.client(url, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds)
