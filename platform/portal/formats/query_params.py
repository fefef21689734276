"""Read text that a browser or a caller sent, so that the database may see it."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import HttpRequest

from portal.errors import BadQuery


def text(query: Mapping[str, str], name: str) -> str | None:
    """Return a parameter, None when it is absent or empty. Raises BadQuery for NUL, which PostgreSQL cannot hold."""
    value = query.get(name) or None
    if value is not None and "\0" in value:
        raise BadQuery(name, value, "text without NUL characters")
    return value


def posted(request: HttpRequest, name: str) -> str:
    """Return a field of a form, without NUL characters and without space around it."""
    return request.POST.get(name, "").replace("\0", "").strip()
