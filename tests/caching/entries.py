"""Entries for tests of stored responses."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from caching.entry import Entry

NAME = b"n" * 32


def entry_of(body: bytes, **changes: Any) -> Entry:
    """Return an entry of this body."""
    usual: dict[str, Any] = {
        "prompt_tokens": 1,
        "cached_prompt_tokens": 0,
        "completion_tokens": 1,
        "engine_ms": 1.0,
        "source_id": UUID(int=1),
        "key_id": UUID(int=2),
        "stored_at": 1.0,
        "ttl_seconds": 60,
    }
    return Entry(body=body, **{**usual, **changes})
