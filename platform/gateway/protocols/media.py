"""Media that messages name: an engine fetches only from hosts the operator allows, and knows it by its content."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from gateway.errors import BadRequest

#: Where a part names what the engine would fetch (OpenAI's parts and items, vLLM's audio and video).
_FETCHED = ("image_url", "audio_url", "video_url", "file_url")
#: Where a part holds further parts: an answer of a tool, an image that it took.
_NESTED = ("content", "output")


def clean_messages(messages: list[dict[str, Any]], name: str = "messages") -> None:
    """Check the parts of each message. Raises BadRequest naming the part."""
    for position, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            clean_parts(content, f"{name}[{position}].content")


def clean_parts(parts: list[Any], where: str) -> None:
    """Check parts, and those inside them. Raises BadRequest."""
    if parts and isinstance(parts[0], int):  # token ids, as many as there are
        return
    for position, part in enumerate(parts):
        if isinstance(part, list):
            clean_parts(part, f"{where}[{position}]")
        elif isinstance(part, dict) and not (part.get("type") == "text" and len(part) == 2):
            clean_part(part, f"{where}[{position}]")


def clean_part(part: dict[str, Any], where: str) -> None:
    """Drop the name under which an engine would share a part between tenants, and refuse what it may not fetch.

    A part's ``uuid`` names an item of the engine's media cache, which no salt divides: with it one tenant would be
    given another's image (vLLM, ``renderers/chat_utils.py``). Raises BadRequest.
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


def fetches(value: Any) -> bool:
    """Say whether a body names something by an address, at which there may be something else the next time."""
    if isinstance(value, list):
        return not (value and isinstance(value[0], int)) and any(fetches(inner) for inner in value)
    if not isinstance(value, dict):
        return False
    for name in (*_FETCHED, "url"):
        named = value.get(name)
        if isinstance(named, str) and named[:5].lower() != "data:":
            return True
    return any(fetches(inner) for inner in value.values())


def _check(url: Any, where: str) -> None:
    if not isinstance(url, str) or url[:5].lower() == "data:":
        return
    allowed: tuple[str, ...] = settings.MEDIA_DOMAINS
    if _host(url) in allowed:
        return
    hosts = ", ".join(allowed) or "none"
    raise BadRequest(
        f"'{where}' is an address that engines may not fetch from; send the content itself as a data: URL. "
        f"Hosts that may be fetched from: {hosts}.",
        "media_not_allowed",
        where,
    )


def _host(url: str) -> str | None:
    """Return the host of a plain web address; None for what two readers could take for two hosts."""
    if any(character in url for character in "\\@") or any(character <= " " for character in url):
        return None
    try:
        found = urlsplit(url)
        return found.hostname if found.scheme in {"http", "https"} else None
    except ValueError:
        return None
