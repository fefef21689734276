"""What the stages need to know about a request body besides its top-level fields.

For a small body each stage computes its part when it needs it. A large one is read in another process
(``gateway.bodies``), which computes all of it at once, and whose large fields stay text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from routing.prefixes.prefix_hash import PrefixHashes

#: Types of message parts whose text is in the body; any other may be an image that the body only links to.
_TEXT_PARTS = frozenset(
    {"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal", "thinking", "redacted_thinking"}
    | {"reasoning", "message", "tool_use", "tool_result", "function_call", "function_call_output"}
)
#: A longer name of a session or an end user is replaced by its hash.
MAX_SESSION_CHARACTERS = 200


class BodyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was computed about a large body."""

    #: A part refers to content that may change.
    fetches_media: bool
    #: A part may be other than text.
    has_media: bool
    #: Why equal requests may have different responses (``caching.bypass.of_body``).
    bypass: Literal["stateful", "tools"] | None
    session: str | None
    prefix: PrefixHashes
    #: See ``routing.prefixes.prefix_hash.opening``.
    opening: bytes | None
    #: See ``routing.prefixes.prefix_hash.question``.
    question: bytes


def session_in(body: Mapping[str, Any]) -> str | None:
    """Return the session's name in a body: ``prompt_cache_key``, ``user``, or Anthropic's ``metadata.user_id``."""
    named = body.get("prompt_cache_key") or body.get("user")
    if named:
        return _short(str(named))
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return _short(user) if isinstance(user, str) and user else None


def end_user_in(body: Mapping[str, Any]) -> str:
    """Return whom the caller serves: ``safety_identifier``, ``user``, or Anthropic's ``metadata.user_id``, else ""."""
    metadata = body.get("metadata")
    named = (
        body.get("safety_identifier"),
        body.get("user"),
        metadata.get("user_id") if isinstance(metadata, dict) else None,
    )
    return next((_short(name) for name in named if name and isinstance(name, str)), "")


def has_media(body: Mapping[str, Any]) -> bool:
    """Return whether a message of the body, or any part of one, may be other than text."""
    return _has_media([body.get(name) for name in ("messages", "input", "system")])


def _short(name: str) -> str:
    return name if len(name) <= MAX_SESSION_CHARACTERS else hashlib.sha256(name.encode()).hexdigest()


def _has_media(value: Any) -> bool:
    if isinstance(value, dict):
        kind = value.get("type", "text")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS:
            return True
        inner: Iterable[Any] = (value.get("content"), value.get("output"), value.get("summary"))
    elif isinstance(value, list):
        inner = value
    else:
        return False
    for each in inner:  # any() with a generator takes three times as long
        kind = type(each)
        if kind is dict and len(each) == 2 and type(each.get("content")) is str and "role" in each:
            continue  # most messages
        if (kind is dict or kind is list) and _has_media(each):
            return True
    return False
