"""How much of a prompt routing expected an engine to have cached, in the engine's own tokens."""

from __future__ import annotations

import msgspec

from gateway.protocols.endpoint import Usage
from routing.explanation import PrefixMatch


class CachePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an END, which compare with its ``cached_prompt_tokens``."""

    cached_tokens: int | None = None
    nearest_warm_tokens: int | None = None
    diverged_message: int | None = None


UNKNOWN = CachePrediction()


def of(match: PrefixMatch | None, usage: Usage) -> CachePrediction:
    """Return the prediction for a prompt whose tokens the engine has counted.

    Routing estimates tokens from bytes. So the expected share of the prompt is taken of the engine's count: what then
    differs from the cached tokens is an error about the cache, not about the length of a token.
    """
    tokens = usage.prompt_tokens + usage.cached_prompt_tokens
    if match is None or not tokens:
        return UNKNOWN
    estimate = max(1, match.prompt_tokens)
    return CachePrediction(
        cached_tokens=min(match.warm_tokens, estimate) * tokens // estimate,
        nearest_warm_tokens=min(match.nearest_warm_tokens, estimate) * tokens // estimate,
        diverged_message=match.diverged_message,
    )
