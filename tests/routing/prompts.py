"""Prompts to route, for the tests of this room."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st

from routing.prefix_hash import Chain, Message, chain
from routing.router import Ask

ROOT = b"r" * 32

texts = st.binary(max_size=900)
messages = st.builds(Message, head=st.sampled_from([b"user", b"assistant"]), text=texts)
prompts = st.lists(messages, min_size=1, max_size=5)


def replicas(count: int) -> list[UUID]:
    """Return that many replicas."""
    return [UUID(int=number + 1) for number in range(count)]


def user(text: str) -> Message:
    """Return a user's message."""
    return Message(head=b"user", text=text.encode())


def system(text: str) -> Message:
    """Return a system prompt."""
    return Message(head=b"system", text=text.encode(), system=True)


def prompt(*said: Message, root: bytes = ROOT) -> Chain:
    """Return the chain of a prompt."""
    return chain(root, said)


def ask(*said: Message, session: str = "", max_new_tokens: int = 16) -> Ask:
    """Return a request with this prompt."""
    return Ask(chain=prompt(*said), session=session.encode() or None, max_new_tokens=max_new_tokens)


def shared(one: Chain, other: Chain) -> int:
    """Return how many leading links two chains have in common."""
    pairs = zip(one.links, other.links, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.links), len(other.links)))
