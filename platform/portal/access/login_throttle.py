"""Slow down password guessing: a limited number of wrong passwords per 15 minutes, counted in Redis for all processes.

Failures are counted per (name, address) and, with a higher limit, per address. They are not counted per name alone,
because then any client could lock an operator out. While Redis is unavailable nothing is counted, because operators
must be able to sign in during such an incident; each guess then still costs a password hash, about 0.25 s.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache

from django.conf import settings
from redis import Redis
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import OutOfMemoryError
from redis.exceptions import TimeoutError as TooSlow

from portal.errors import TooManyAttempts

WINDOW_SECONDS = 900
MAX_PER_NAME_AND_ADDRESS = 10
MAX_PER_ADDRESS = 60
#: Redis is unavailable. Any other Redis error is a bug and is raised.
UNAVAILABLE = (Disconnected, TooSlow, OutOfMemoryError)

log = logging.getLogger(__name__)


def check(name: str, address: str) -> None:
    """Raise TooManyAttempts if this name and address, or this address alone, had too many failures."""
    keys = _keys(name, address)
    try:
        counts = _redis().mget(list(keys))
        for key, limit, count in zip(keys, keys.values(), counts, strict=True):
            if int(count or 0) >= limit:
                raise TooManyAttempts(max(1, int(_redis().ttl(key))))
    except UNAVAILABLE as error:
        log.warning("cannot read the count of wrong passwords: %s", error)


def count_failure(name: str, address: str) -> None:
    """Count one wrong password. The window of 15 minutes starts at the first."""
    try:
        with _redis().pipeline() as pipeline:
            for key in _keys(name, address):
                # EXPIRE with NX would be shorter, but the embedded Redis is older than that
                pipeline.set(key, 0, ex=WINDOW_SECONDS, nx=True)
                pipeline.incr(key)
            pipeline.execute()
    except UNAVAILABLE as error:
        log.warning("cannot count a wrong password: %s", error)


def reset(name: str, address: str) -> None:
    """Delete the count of this name and address after a right password."""
    try:
        _redis().delete(next(iter(_keys(name, address))))
    except UNAVAILABLE as error:
        log.warning("cannot reset the count of wrong passwords: %s", error)


def _keys(name: str, address: str) -> dict[str, int]:
    """Return each counter's key and limit. Names are hashed, because people type passwords into the name field."""
    both = hashlib.sha256(f"{name.casefold()}\0{address}".encode()).hexdigest()[:32]
    return {
        f"hearth:guess:both:{both}": MAX_PER_NAME_AND_ADDRESS,
        f"hearth:guess:address:{hashlib.sha256(address.encode()).hexdigest()[:32]}": MAX_PER_ADDRESS,
    }


@cache
def _redis() -> Redis:
    timeout = settings.REDIS_TIMEOUT_SECONDS
    return Redis.from_url(settings.REDIS_LIMITS_URL, socket_timeout=timeout, socket_connect_timeout=timeout)
