"""Turn a prompt into a chain of hashes, so that equal beginnings have equal links.

The chain stands in for the engine's own block hashes until tokens are known here: it is cut at message borders and
inside a message at places that its length alone decides, so a shared document followed by another question shares all
but its last link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

#: About 64 tokens of English: small enough to see where two prompts part, large enough to hash little.
CHUNK_BYTES = 256
#: A chunk takes no more than this part of what precedes it in its message, so that of a long text that two prompts
#: share hardly more is overlooked, while 100 KB take 70 links and not 400.
GROWTH = 16
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
    #: How many bytes end with each link.
    ends: tuple[int, ...]
    #: How many leading links belong to system messages.
    system_links: int
    #: Estimate for the whole prompt.
    tokens: int

    def tokens_of(self, depth: int) -> int:
        """Return the estimated tokens under the first ``depth`` links."""
        return self.ends[depth - 1] // BYTES_PER_TOKEN if depth else 0


def chain(root: bytes, messages: Sequence[Message]) -> Chain:
    """Return the chain of a prompt under a tenant's ``root``; two roots share no link.

    Links are 16 bytes of BLAKE2b over (previous link, chunk). Empty messages still make a link, for their role.
    """
    previous = root
    links: list[bytes] = []
    ends: list[int] = []
    system_links = 0
    leading_system = True
    total = 0
    for message in messages:
        head, text = message.head, message.text
        before = total + len(head)
        total = before + len(text)
        chunk = len(head).to_bytes(4, "big") + head + text[:CHUNK_BYTES]
        end = CHUNK_BYTES
        while len(links) < MAX_CHUNKS:
            previous = hashlib.blake2b(chunk, digest_size=16, key=previous).digest()
            links.append(previous)
            ends.append(min(before + end, total))
            if end >= len(text):
                break
            start, end = end, end + max(CHUNK_BYTES, end // GROWTH)
            chunk = text[start:end]
        leading_system = leading_system and message.system
        if leading_system:
            system_links = len(links)
    return Chain(
        links=tuple(links),
        ends=tuple(ends),
        system_links=system_links,
        tokens=max(1, total // BYTES_PER_TOKEN),
    )
