"""Read text from queries and forms without the NUL characters that PostgreSQL cannot store."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import HttpRequest

from portal.errors import BadQuery


def text(query: Mapping[str, str], name: str) -> str | None:
    """Return a query parameter; None if absent or empty. Raises BadQuery for text with NUL."""
    value = query.get(name) or None
    if value is not None and "\0" in value:
        raise BadQuery(name, value, "text without NUL characters")
    return value


def tag(query: Mapping[str, str], name: str = "tag") -> tuple[str, str] | None:
    """Return a tag's name and value from a parameter ``name=value``; None if absent. Raises BadQuery."""
    given = text(query, name)
    if given is None:
        return None
    key, separator, value = given.partition("=")
    if not key or not separator:
        raise BadQuery(name, given, "a tag as name=value, such as app=search")
    return key, value


def posted(request: HttpRequest, name: str) -> str:
    """Return a form field without NUL characters and surrounding whitespace."""
    return request.POST.get(name, "").replace("\0", "").strip()
