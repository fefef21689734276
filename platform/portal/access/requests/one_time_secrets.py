"""Carry a new secret over one redirect, so that the next page can show it exactly once.

The secret is split into two shares (a one-time pad): the user's session holds one, a cookie of the user's browser the
other. Either alone is random bytes, so neither the database and its backups nor the browser's cookie store hold the
secret. Reading it removes both.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect

#: How long the redirect may take.
LIFETIME_SECONDS = 120
_SESSION_KEY = "one-time-secrets"


def show_once(request: HttpRequest, page: str, name: str, secret: str) -> HttpResponseRedirect:
    """Return a redirect to ``page``, a path without a query; its ``?new=`` is the name by which it takes the secret."""
    response = HttpResponseRedirect(f"{page}?{urlencode({'new': name})}")
    store(request, response, name, secret)
    return response


def store(request: HttpRequest, response: HttpResponseBase, name: str, secret: str) -> None:
    """Keep a secret for the next page of this browser. ``name`` becomes part of a cookie's name."""
    text = secret.encode()
    pad = secrets.token_bytes(len(text))
    share = {"share": _combine(text, pad).hex(), "until": time.time() + LIFETIME_SECONDS}
    request.session[_SESSION_KEY] = {**_current(request), name: share}
    response.set_cookie(
        _cookie(name),
        pad.hex(),
        max_age=LIFETIME_SECONDS,
        httponly=True,
        samesite="Strict",
        secure=settings.SESSION_COOKIE_SECURE,
    )


def take(request: HttpRequest, name: str) -> str | None:
    """Return the secret, once. None when it was shown before, is too old or was kept by another browser."""
    current = _current(request)
    share = current.pop(name, None)
    if _SESSION_KEY in request.session:
        request.session[_SESSION_KEY] = current
    pad = request.COOKIES.get(_cookie(name))
    if share is None or pad is None:
        return None
    try:
        return _combine(bytes.fromhex(str(share["share"])), bytes.fromhex(pad)).decode()
    except ValueError:  # an altered cookie
        return None


def delete_cookie(response: HttpResponseBase, name: str) -> None:
    """Delete the browser's share."""
    response.delete_cookie(_cookie(name), samesite="Strict")


def _current(request: HttpRequest) -> dict[str, Mapping[str, object]]:
    """Return the session's shares that are not too old."""
    found: dict[str, Mapping[str, object]] = request.session.get(_SESSION_KEY, {})
    return {name: share for name, share in found.items() if float(str(share["until"])) > time.time()}


def _cookie(name: str) -> str:
    """Return the cookie's name; cookies know no ports, so the name has the instance's."""
    return f"hearth-new-{settings.GATEWAY_PORT}-{name}"


def _combine(one: bytes, other: bytes) -> bytes:
    """XOR two byte strings. Raises ValueError if their lengths differ."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
