"""Slow down whoever guesses passwords: a few wrong ones a quarter of an hour, counted in Redis for all processes.

Counted per (name, address) and, more generously, per address alone. Not per name alone: then anybody could lock an
operator out. While Redis is away nothing is counted, because an operator must get in during just such an incident;
every guess then still costs the password hash, about a quarter of a second.
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
#: Redis cannot count now. Any other error of it is a mistake of ours, and shows.
UNAVAILABLE = (Disconnected, TooSlow, OutOfMemoryError)

log = logging.getLogger(__name__)


def check(name: str, address: str) -> None:
    """Raise TooManyGuesses if this name from this address, or this address, has been wrong too often."""
    keys = _keys(name, address)
    try:
        counts = _redis().mget(list(keys))
        for key, limit, count in zip(keys, keys.values(), counts, strict=True):
            if int(count or 0) >= limit:
                raise TooManyAttempts(max(1, int(_redis().ttl(key))))
    except UNAVAILABLE as error:
        log.warning("wrong passwords are not counted: %s", error)


def count_failure(name: str, address: str) -> None:
    """Count one wrong password. The window starts at the first."""
    try:
        with _redis().pipeline() as pipeline:
            for key in _keys(name, address):
                # EXPIRE with NX would be shorter, but the embedded Redis is older than that
                pipeline.set(key, 0, ex=WINDOW_SECONDS, nx=True)
                pipeline.incr(key)
            pipeline.execute()
    except UNAVAILABLE as error:
        log.warning("a wrong password is not counted: %s", error)


def reset(name: str, address: str) -> None:
    """Forget the wrong ones of this name after a right one."""
    try:
        _redis().delete(next(iter(_keys(name, address))))
    except UNAVAILABLE as error:
        log.warning("wrong passwords are not forgotten: %s", error)


def _keys(name: str, address: str) -> dict[str, int]:
    """Return each counter's key and limit. Hashed: a name typed into the wrong field may be a password."""
    both = hashlib.sha256(f"{name.casefold()}\0{address}".encode()).hexdigest()[:32]
    return {
        f"hearth:guess:both:{both}": MAX_PER_NAME_AND_ADDRESS,
        f"hearth:guess:address:{hashlib.sha256(address.encode()).hexdigest()[:32]}": MAX_PER_ADDRESS,
    }


@cache
def _redis() -> Redis:
    timeout = settings.REDIS_TIMEOUT_SECONDS
    return Redis.from_url(settings.REDIS_LIMITS_URL, socket_timeout=timeout, socket_connect_timeout=timeout)
