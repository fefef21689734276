"""Turn a prompt into a chain of hashes, so that equal beginnings have equal links.

The chain stands in for the engine's own block hashes until tokens are known here: it is cut at message borders and
inside a message at places that its length alone decides, so a shared document followed by another question shares all
but its last link.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

#: About 64 tokens of English: small enough to see where two prompts part, large enough to hash little.
CHUNK_BYTES = 256
#: Far inside a message a chunk takes this part of what precedes it there, so that of a long text that two prompts share
#: hardly more is overlooked, while 100 KB take 70 links and not 400.
GROWTH = 16
#: Links kept of one prompt; what lies beyond is as warm as what lies before it.
MAX_HASHES = 2048
#: Texts of which the links are kept for the next prompt that begins alike, bytes; and how many links are kept, of all.
LONG_BYTES = 512
KEPT_HASHES = 65_536
#: What lies beyond in a text is one chunk; no body is as large.
LARGEST_BYTES = 1 << 30
#: Bytes of text a token stands for, on average; used only for estimates.
BYTES_PER_TOKEN = 4


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message: ``head`` is what precedes its text (the role), ``text`` its content as bytes."""

    head: bytes
    text: bytes
    system: bool = False


class PrefixHashes(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's links in order; a match at i implies a match at every j < i."""

    hashes: tuple[bytes, ...]
    #: How many bytes end with each link.
    ends: tuple[int, ...]
    #: How many leading links belong to system messages.
    system_hashes: int
    #: Estimate for the whole prompt.
    tokens: int

    def tokens_of(self, depth: int) -> int:
        """Return the estimated tokens under the first ``depth`` links."""
        if depth == len(self.hashes):
            return self.tokens if depth else 0
        return self.ends[depth - 1] // BYTES_PER_TOKEN if depth else 0


def prefix_hashes(root: bytes, messages: Sequence[PromptMessage]) -> PrefixHashes:
    """Return the chain of a prompt under a tenant's ``root``; two roots share no link.

    Links are 16 bytes of BLAKE2b over (previous link, chunk). Empty messages still make a link, for their role.
    """
    links: list[bytes] = []
    ends: list[int] = []
    system_links = 0
    leading_system = True
    total = 0
    for message in messages:
        head, text = message.head, message.text
        before = total + len(head)
        total = before + len(text)
        if len(links) < MAX_HASHES:
            previous = links[-1] if links else root
            own_ends = _ends(len(text))
            links_of = _long.hashes if len(text) >= LONG_BYTES else _hashed
            links += links_of(previous, head, text, own_ends)
            ends += [before + end for end in own_ends]
        leading_system = leading_system and message.system
        if leading_system:
            system_links = min(len(links), MAX_HASHES)
    return PrefixHashes(
        hashes=tuple(links[:MAX_HASHES]),
        ends=tuple(ends[:MAX_HASHES]),
        system_hashes=system_links,
        tokens=max(1, total // BYTES_PER_TOKEN),
    )


class _LongTexts:
    """The links of long texts that came lately, of a shared system prompt or a conversation until now: to find them
    takes an eighth of the time of hashing them. Lives on one event loop.

    A message is known by its place, lengths and Python's hashes, which are keyed. That two of one place are taken for
    each other, and a prompt for warm where it is not, has a chance of 2**-64.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, int, int, int, int], tuple[bytes, ...]] = {}
        #: Of all of them together.
        self.count = 0

    def hashes(self, previous: bytes, head: bytes, text: bytes, ends: tuple[int, ...]) -> tuple[bytes, ...]:
        """Return the links of a message behind another; ``ends``: where its text's chunks end, bytes."""
        name = (previous, len(head), hash(head), len(text), hash(text))
        found = self._known.pop(name, None)
        if found is None:
            found = _hashed(previous, head, text, ends)
            self.count += len(found)
        self._known[name] = found  # as the last to be dropped
        while self.count > KEPT_HASHES:
            self.count -= len(self._known.pop(next(iter(self._known))))
        return found


_long = _LongTexts()


def _hashed(previous: bytes, head: bytes, text: bytes, ends: tuple[int, ...]) -> tuple[bytes, ...]:
    """Return the links of a message behind another; ``ends``: where its text's chunks end, bytes."""
    links: list[bytes] = []
    front, start = len(head).to_bytes(4, "big") + head, 0
    for end in ends:
        previous = hashlib.blake2b(front + text[start:end], digest_size=16, key=previous).digest()
        links.append(previous)
        front, start = b"", end
    return tuple(links)


def _borders() -> Iterator[int]:
    """Yield where chunks of any text end, but for its last."""
    end = CHUNK_BYTES
    while end < LARGEST_BYTES:
        yield end
        end += max(CHUNK_BYTES, end // GROWTH)


_BORDERS = tuple(_borders())


def _ends(length: int) -> tuple[int, ...]:
    """Return where the chunks of a text of so many bytes end."""
    return (*_BORDERS[: bisect_left(_BORDERS, length)], length)
