"""New prompts: the request that the victim sends, and the request with which the attacker tests for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

CacheName = Literal["prediction", "prefix"]
CACHES: tuple[CacheName, ...] = ("prediction", "prefix")
#: Bypasses the prediction cache, so that only the prefix cache has an effect.
BYPASS_PREDICTION = {"cache-control": "no-store"}
SENTENCE = "The list type holds objects in order, and a set holds each object once. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One secret prompt: the victim's request, and the request with which the attacker tests for it."""

    victim_request: bytes
    attacker_request: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGenerator:
    """Generates prompts for one model. The two of a pair for the prefix cache share ``prefix_words`` words.

    Prompts for the prediction cache are half as long, because every miss makes an engine process the whole prompt.
    """

    model: str
    prefix_words: int

    def prompt(self, cache: CacheName) -> Prompt:
        """Return a new prompt. It starts with a random id, so no part of it is cached."""
        if cache == "prediction":
            body = self.body(self.opening(self.prefix_words // 2))
            return Prompt(victim_request=body, attacker_request=body, headers={})
        opening = self.opening(self.prefix_words)
        return Prompt(
            victim_request=self.body(f"{opening} What is a list?"),
            attacker_request=self.body(f"{opening} And what is a set?"),
            headers=BYPASS_PREDICTION,
        )

    def opening(self, words: int) -> str:
        """Return a new beginning of this many words."""
        vocabulary = SENTENCE.split()
        return f"{uuid4()} " + " ".join(vocabulary[number % len(vocabulary)] for number in range(words))

    def body(self, content: str, **fields: Any) -> bytes:
        """Return a deterministic request for one token, so that its first byte is the first token's."""
        request = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 1,
            "temperature": 0,
        }
        return json.dumps(request | fields).encode()
