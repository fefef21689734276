"""Check the media in messages: engines fetch only from allowed hosts, and identify media by their content."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from gateway.errors import BadRequest

#: Fields of a part whose URL the engine would fetch (OpenAI's parts and items, vLLM's audio and video).
_FETCHED = ("image_url", "audio_url", "video_url", "file_url")
#: Fields of a part that contain further parts: the output of a tool, or an image that it took.
_NESTED = ("content", "output")


def clean_messages(messages: list[dict[str, Any]], name: str = "messages") -> None:
    """Check the parts of each message. Raises BadRequest with the part's position."""
    for position, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            clean_parts(content, f"{name}[{position}].content")


def clean_parts(parts: list[Any], where: str) -> None:
    """Check parts and their nested parts. Raises BadRequest."""
    if _is_numbers(parts):
        return
    for position, part in enumerate(parts):
        if isinstance(part, list):
            clean_parts(part, f"{where}[{position}]")
        elif isinstance(part, dict) and not (part.get("type") == "text" and len(part) == 2):
            clean_part(part, f"{where}[{position}]")


def clean_part(part: dict[str, Any], where: str) -> None:
    """Drop the id under which an engine would share a part between tenants; reject URLs that it may not fetch.

    A part's ``uuid`` is a key of the engine's media cache, which no salt divides: with it one tenant would receive
    another's image (vLLM, ``renderers/chat_utils.py``). Raises BadRequest.
    """
    part.pop("uuid", None)
    for name in _FETCHED:
        value = part.get(name)
        _check(value.get("url") if isinstance(value, dict) else value, f"{where}.{name}")
    source = part.get("source")
    if isinstance(source, dict):
        _check(source.get("url"), f"{where}.source.url")
        clean_part(source, f"{where}.source")
    for name in _NESTED:
        inner = part.get(name)
        if isinstance(inner, list):
            clean_parts(inner, f"{where}.{name}")
        elif isinstance(inner, dict):
            clean_part(inner, f"{where}.{name}")


def may_fetch(canonical: bytes, body: Any) -> bool:
    """Return whether a body, whose canonical form is given too, refers to content that an engine may fetch."""
    return bool(settings.MEDIA_DOMAINS) and b'url"' in canonical and fetches(body)


def fetches(value: Any) -> bool:
    """Return whether a body refers to content by a URL, where the content may change between two requests."""
    if isinstance(value, list):
        return not _is_numbers(value) and any(fetches(inner) for inner in value)
    if not isinstance(value, dict):
        return False
    for name in (*_FETCHED, "url"):
        named = value.get(name)
        if isinstance(named, str) and named[:5].lower() != "data:":
            return True
    return any(fetches(inner) for inner in value.values())


def _is_numbers(values: list[Any]) -> bool:
    """Return whether a list contains token ids and nothing else. It may be long."""
    return bool(values) and isinstance(values[0], int) and set(map(type, values)) <= {int}


def _check(url: Any, where: str) -> None:
    if not isinstance(url, str) or url[:5].lower() == "data:":
        return
    allowed: tuple[str, ...] = settings.MEDIA_DOMAINS
    if _host(url) in allowed:
        return
    hosts = ", ".join(allowed) or "none"
    raise BadRequest(
        f"'{where}' is a URL that engines may not fetch. Send the content itself as a data: URL. "
        f"Hosts that engines may fetch from: {hosts}.",
        "media_not_allowed",
        where,
    )


def _host(url: str) -> str | None:
    """Return the host of a plain web URL; None for a URL whose host two parsers could read differently."""
    if any(character in url for character in "\\@") or any(character <= " " for character in url):
        return None
    try:
        found = urlsplit(url)
        return found.hostname if found.scheme in {"http", "https"} else None
    except ValueError:
        return None
