"""Turn a prompt into a chain of hashes, so that equal beginnings have equal links.

The chain stands in for the engine's own block hashes until tokens are known here: it is cut at message borders and
every ``CHUNK_BYTES`` inside a message, so a shared document followed by another question shares all but its last link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

#: About 64 tokens of English: small enough to see where two prompts part, large enough to hash little.
CHUNK_BYTES = 256
#: Links kept of one prompt; what lies beyond is as warm as what lies before it.
MAX_CHUNKS = 2048
#: Bytes of text a token stands for, on average; used only for estimates.
BYTES_PER_TOKEN = 4


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message: ``head`` is what precedes its text (the role), ``text`` its content as bytes."""

    head: bytes
    text: bytes
    system: bool = False


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's links in order; a match at i implies a match at every j < i."""

    links: tuple[bytes, ...]
    #: How many leading links belong to system messages.
    system_links: int
    #: Estimate for the whole prompt.
    tokens: int

    def tokens_of(self, depth: int) -> int:
        """Return the estimated tokens under the first ``depth`` links."""
        return self.tokens * depth // len(self.links) if self.links else 0


def chain(root: bytes, messages: Sequence[Message]) -> Chain:
    """Return the chain of a prompt under a tenant's ``root``; two roots share no link.

    Links are 16 bytes of BLAKE2b over (previous link, chunk). Empty messages still make a link, for their role.
    """
    previous = root
    links: list[bytes] = []
    system_links = 0
    leading_system = True
    total = 0
    for message in messages:
        leading_system = leading_system and message.system
        total += len(message.head) + len(message.text)
        for chunk in _chunks(message):
            if len(links) == MAX_CHUNKS:
                break
            previous = hashlib.blake2b(chunk, digest_size=16, key=previous).digest()
            links.append(previous)
            system_links += leading_system
    return Chain(links=tuple(links), system_links=system_links, tokens=max(1, total // BYTES_PER_TOKEN))


def _chunks(message: Message) -> list[bytes]:
    head = len(message.head).to_bytes(4, "big") + message.head
    text = message.text
    if len(text) <= CHUNK_BYTES:
        return [head + text]
    return [head + text[:CHUNK_BYTES], *(text[i : i + CHUNK_BYTES] for i in range(CHUNK_BYTES, len(text), CHUNK_BYTES))]
