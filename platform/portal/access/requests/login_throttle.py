"""Slow down password guessing: a limited number of wrong passwords per 15 minutes, counted in Redis for all processes.

Attempts are counted per (name, client) and, with a higher limit, per client: an IPv4 address or the /64 of an IPv6
address. They are not counted per name alone, because then any client could lock an operator out. An attempt is counted
before its password is checked, so that many at once do not all find room, and a right password gives it back. While
Redis is unavailable attempts are limited by their cost alone: each process checks MAX_HASHES passwords at once, 0.25 s
each, because operators must be able to sign in during such an incident.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import BoundedSemaphore

from django.conf import settings
from django.db import DatabaseError
from redis import Redis
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import OutOfMemoryError
from redis.exceptions import TimeoutError as TooSlow

from portal import redis_clients
from portal.errors import TooManyAttempts
from tenants import networks

WINDOW_SECONDS = 900
MAX_PER_NAME_AND_CLIENT = 10
MAX_PER_CLIENT = 60
#: Passwords that are checked at once, and how long one waits for its turn.
MAX_HASHES = 4
HASH_WAIT_SECONDS = 5.0
RETRY_SECONDS = 5
#: Redis is unavailable. Any other Redis error is a bug and is raised.
UNAVAILABLE = (Disconnected, TooSlow, OutOfMemoryError)

log = logging.getLogger(__name__)

_hashes = BoundedSemaphore(MAX_HASHES)


@contextmanager
def attempt(name: str, address: str) -> Iterator[None]:
    """Count one attempt; the block checks the password and raises when it is wrong.

    Raises TooManyAttempts, before the block runs, if this name and client or this client alone had too many.
    """
    keys = _keys(name, networks.client_network(address))
    _count(keys)
    if not _hashes.acquire(timeout=HASH_WAIT_SECONDS):
        _give_back(keys, all_of=False)
        raise TooManyAttempts(RETRY_SECONDS)
    try:
        yield
    except DatabaseError:
        _give_back(keys, all_of=False)
        raise
    finally:
        _hashes.release()
    _give_back(keys, all_of=True)


@contextmanager
def code_attempt(person: str) -> Iterator[None]:
    """Count one attempt at a person's second factor, from wherever it comes; the block raises if the code is wrong.

    Whoever comes this far knows the password. Raises TooManyAttempts before the block runs.
    """
    keys = {f"hearth:guess:code:{person}": MAX_PER_NAME_AND_CLIENT}
    _count(keys)
    yield
    try:
        _redis().delete(*keys)
    except UNAVAILABLE as error:
        log.warning("cannot reset the count of attempts at a code: %s", error)


def _count(keys: Mapping[str, int]) -> None:
    """Count one attempt under each key. The window starts at the first. Raises TooManyAttempts."""
    try:
        with _redis().pipeline() as pipeline:
            for key in keys:
                # EXPIRE with NX would be shorter, but the embedded Redis is older than that
                pipeline.set(key, 0, ex=WINDOW_SECONDS, nx=True)
                pipeline.incr(key)
                pipeline.ttl(key)
            replies = pipeline.execute()
    except UNAVAILABLE as error:
        log.warning("cannot count an attempt to sign in: %s", error)
        return
    for (key, limit), count, ttl in zip(keys.items(), replies[1::3], replies[2::3], strict=True):
        if int(count) > limit:
            log.warning("too many wrong passwords; attempts are refused for %s s (%s)", ttl, key)
            raise TooManyAttempts(max(1, int(ttl)))


def _give_back(keys: Mapping[str, int], *, all_of: bool) -> None:
    """Take an attempt off both counts. ``all_of``: after a right password, all of those of name and client."""
    both, client = keys
    try:
        with _redis().pipeline() as pipeline:
            for key in (client,) if all_of else (both, client):
                pipeline.set(key, 0, ex=WINDOW_SECONDS, nx=True)  # it may have expired meanwhile
                pipeline.decr(key)
            if all_of:
                pipeline.delete(both)
            pipeline.execute()
    except UNAVAILABLE as error:
        log.warning("cannot reset the count of attempts to sign in: %s", error)


def _keys(name: str, client: str) -> dict[str, int]:
    """Return the key and the limit of both counters, that of name and client first.

    Names are hashed, because people type passwords into the name field.
    """
    both = hashlib.sha256(f"{name.casefold()}\0{client}".encode()).hexdigest()[:32]
    return {
        f"hearth:guess:both:{both}": MAX_PER_NAME_AND_CLIENT,
        f"hearth:guess:address:{hashlib.sha256(client.encode()).hexdigest()[:32]}": MAX_PER_CLIENT,
    }


def _redis() -> Redis:
    return redis_clients.client(settings.REDIS_LIMITS_URL, settings.REDIS_TIMEOUT_SECONDS)
