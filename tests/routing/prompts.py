"""Prompts for routing's tests."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st

from routing.prefixes.prefix_hash import PrefixHashes, PromptMessage, prefix_hashes
from routing.router import RoutingRequest

ROOT = b"r" * 32

texts = st.binary(max_size=900)
messages = st.builds(PromptMessage, head=st.sampled_from([b"user", b"assistant"]), text=texts)
prompts = st.lists(messages, min_size=1, max_size=5)


def replicas(count: int) -> list[UUID]:
    """Return that many replicas."""
    return [UUID(int=number + 1) for number in range(count)]


def user(text: str) -> PromptMessage:
    """Return a user's message."""
    return PromptMessage(head=b"user", text=text.encode())


def system(text: str) -> PromptMessage:
    """Return a system prompt."""
    return PromptMessage(head=b"system", text=text.encode())


def prompt(*said: PromptMessage, root: bytes = ROOT) -> PrefixHashes:
    """Return the hashes of a prompt."""
    return prefix_hashes(root, said)


def ask(
    *said: PromptMessage,
    tenant: bytes = b"",
    session: str = "",
    strict: bool = False,
    max_new_tokens: int = 16,
    streamed: bool = True,
) -> RoutingRequest:
    """Return a request with this prompt."""
    return RoutingRequest(
        prefix=prompt(*said, root=tenant.ljust(32, b"r")),
        tenant=tenant,
        session=session.encode() or None,
        strict=strict,
        max_new_tokens=max_new_tokens,
        streamed=streamed,
    )


def shared(one: PrefixHashes, other: PrefixHashes) -> int:
    """Return how many leading hashes two prompts share."""
    pairs = zip(one.hashes, other.hashes, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.hashes), len(other.hashes)))
