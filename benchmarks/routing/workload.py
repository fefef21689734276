"""What clients ask in a simulation: conversations of one or more turns, with their prompts as names of blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request. ``blocks`` name the full blocks of prompt and answer; equal beginnings have equal names."""

    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    #: Seconds between the end of the turn before and this one.
    think_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns that follow each other, from ``at`` seconds on."""

    at: float
    session: bytes | None
    turns: tuple[Turn, ...]
    tenant: int = 0
    #: The process to which its connection leads; None if each of its requests goes to the next process.
    gateway: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Conversations in order of their beginning, and the engines that they are for."""

    name: str
    conversations: tuple[Conversation, ...]
    block_size: int
    #: Blocks of one engine's cache.
    cache_blocks: int
    #: Prompt tokens that an engine computes in a second.
    tokens_per_second: float


def hashes(blocks: Iterable[int]) -> tuple[bytes, ...]:
    """Return names of blocks as engines and Hearth hash them, 16 bytes each."""
    return tuple(map(_hash, blocks))


@cache
def _hash(block: int) -> bytes:
    return hashlib.blake2b(block.to_bytes(8, "big"), digest_size=16).digest()
