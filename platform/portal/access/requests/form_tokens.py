"""Tokens of forms that must not be sent twice: a double click on "Create key" would make two keys.

A page gives its form a new token; the first request that brings it uses it up, in Redis for all processes. While Redis
is unavailable a form can be sent twice, as it can without a token.
"""

from __future__ import annotations

import hashlib
import logging
import secrets

from django.conf import settings
from redis import Redis

from portal import redis_clients
from portal.access.requests.login_throttle import UNAVAILABLE

#: How long a used token is remembered: longer than a browser repeats a request.
REMEMBERED_SECONDS = 3600

log = logging.getLogger(__name__)


def new() -> str:
    """Return a token for one form."""
    return secrets.token_urlsafe(16)


def use(token: str) -> bool:
    """Use a token up; return whether this is its first use. An empty one is always unused."""
    if not token:
        return True
    name = f"hearth:form:{hashlib.sha256(token.encode()).hexdigest()[:32]}"
    try:
        return bool(_redis().set(name, 1, ex=REMEMBERED_SECONDS, nx=True))
    except UNAVAILABLE as error:
        log.warning("cannot tell whether a form is sent twice: %s", error)
        return True


def _redis() -> Redis:
    return redis_clients.client(settings.REDIS_LIMITS_URL, settings.REDIS_TIMEOUT_SECONDS)
