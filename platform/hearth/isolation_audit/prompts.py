"""Prompts that nobody had before, as the victim sends them and as the attacker asks for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

CacheName = Literal["prediction", "prefix"]
CACHES: tuple[CacheName, ...] = ("prediction", "prefix")
#: Past the prediction cache, so that the prefix cache alone makes the difference.
BYPASS_PREDICTION = {"cache-control": "no-store"}
SENTENCE = "The list type holds objects in order, and a set holds each object once. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One secret of the victim's: ``told`` is the request it sends, ``guessed`` what tries whether it was sent."""

    victim_request: bytes
    attacker_request: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGenerator:
    """Makes prompts for one model; those for the prefix cache begin alike for ``prefix_words`` words.

    Those for the prediction cache are half as long: so much an engine has to read that is asked in vain.
    """

    model: str
    prefix_words: int

    def prompt(self, cache: CacheName) -> Prompt:
        """Return a new prompt. Its first words are random, so no part of it was ever cached."""
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
        """Return a long beginning that nobody had before."""
        spoken = SENTENCE.split()
        return f"{uuid4()} " + " ".join(spoken[number % len(spoken)] for number in range(words))

    def body(self, content: str, **fields: Any) -> bytes:
        """Return a request for one token of a deterministic answer: its first byte is the first token's."""
        asked = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 1,
            "temperature": 0,
        }
        return json.dumps(asked | fields).encode()
