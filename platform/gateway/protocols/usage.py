"""Tokens of one request, as its engine reported them."""

from __future__ import annotations

from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the engine reported them, prompt split in disjoint classes."""

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int


#: A request that is not charged for any token.
NOTHING = Usage(prompt_tokens=0, cached_prompt_tokens=0, completion_tokens=0)


def of_total(prompt: Any, cached: Any, completion: Any) -> Usage:
    """Return usage from a prompt count that includes the cached tokens, as OpenAI's objects count."""
    total = int(prompt or 0)
    warm = min(int(cached or 0), total)
    return Usage(prompt_tokens=total - warm, cached_prompt_tokens=warm, completion_tokens=int(completion or 0))
