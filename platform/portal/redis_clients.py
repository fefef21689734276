"""This process's Redis clients, which its threads share."""

from __future__ import annotations

from functools import cache
from threading import Lock

from redis import Redis

_making = Lock()


def client(url: str, timeout_seconds: float) -> Redis:
    """Return the one client of a URL.

    Threads that ask first at the same moment get the same one: a client that is no longer referred to closes its
    connections, also those that a pipeline uses.
    """
    with _making:
        return _client(url, timeout_seconds)


@cache
def _client(url: str, timeout_seconds: float) -> Redis:
    return Redis.from_url(url, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds)
