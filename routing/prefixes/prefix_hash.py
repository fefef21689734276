"""Turn a prompt into a chain of hashes, so that equal beginnings have equal hashes.

The chain replaces the engine's block hashes, which need tokens. Texts are cut at message borders, and inside a message
at positions that depend only on the text's length; a shared document followed by another question shares all but its
last hash.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import msgspec

#: About 64 tokens of English: small enough to locate where two prompts diverge, large enough to need few hashes.
CHUNK_BYTES = 256
#: In a long text a chunk is 1/GROWTH of the text before it. So little of a long shared text is missed, while 100 KB
#: need 70 hashes instead of 400.
GROWTH = 16
#: Most hashes per prompt; text beyond them counts as warm as the text before it.
MAX_HASHES = 1024
#: Hashes of texts of at least this many bytes are cached; and how many hashes are cached in all.
LONG_BYTES = 512
KEPT_HASHES = 65_536
#: Text beyond this is one chunk; no request body is as large.
LARGEST_BYTES = 1 << 30
#: Heads of what a model wrote.
ANSWERS = frozenset({b"assistant", b"function_call"})
#: Average bytes per token, for estimates only.
BYTES_PER_TOKEN = 4


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message: ``head`` precedes its text (the role), ``text`` is its content as bytes."""

    head: bytes
    text: bytes


class PrefixHashes(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's hashes in order; a match at i implies a match at every j < i."""

    hashes: tuple[bytes, ...]
    #: Bytes of the prompt up to the end of each hash's chunk.
    ends: tuple[int, ...]
    #: Estimated tokens of the whole prompt.
    tokens: int
    #: How many hashes there are up to the end of each message; empty for a prompt that another host described.
    messages: tuple[int, ...] = ()

    def tokens_of(self, depth: int) -> int:
        """Return the estimated tokens under the first ``depth`` hashes."""
        if depth == len(self.hashes):
            return self.tokens if depth else 0
        return self.ends[depth - 1] // BYTES_PER_TOKEN if depth else 0

    def message_at(self, depth: int) -> int | None:
        """Return the number, from 1, of the message with the hash after the first ``depth``; None if there is none."""
        return bisect_right(self.messages, depth) + 1 if depth < len(self.hashes) else None


def prefix_hashes(root: bytes, messages: Sequence[PromptMessage]) -> PrefixHashes:
    """Return the hashes of a prompt under a tenant's ``root``; two roots share none.

    A hash is 16 bytes of BLAKE2b over (previous hash, chunk). An empty message still adds a hash, for its role.
    """
    hashes: list[bytes] = []
    ends: list[int] = []
    counts: list[int] = []
    total = 0
    for message in messages:
        head, text = message.head, message.text
        before = total + len(head)
        total = before + len(text)
        if len(hashes) < MAX_HASHES:
            previous = hashes[-1] if hashes else root
            own_ends = _ends(len(text))
            hash_message = _long.hashes if len(text) >= LONG_BYTES else _hash_message
            hashes += hash_message(previous, head, text, own_ends)
            ends += [before + end for end in own_ends]
            counts.append(len(hashes))
    return PrefixHashes(
        hashes=tuple(hashes[:MAX_HASHES]),
        ends=tuple(ends[:MAX_HASHES]),
        tokens=max(1, total // BYTES_PER_TOKEN),
        messages=tuple(counts),
    )


def opening(prefix: PrefixHashes, messages: Sequence[PromptMessage]) -> bytes | None:
    """Return the hash of a conversation's beginning through its first answer, which no other conversation shares.

    None where no user was answered: a greeting before the first question opens many conversations. ``prefix``: that of
    the same messages.
    """
    asked, length = False, 0
    for message in messages:
        length += len(message.head) + len(message.text)
        if message.head == b"user":
            asked = True
        elif asked and message.head in ANSWERS:
            depth = bisect_left(prefix.ends, length)
            return prefix.hashes[depth] if depth < len(prefix.hashes) else None
    return None


def question(prefix: PrefixHashes, messages: Sequence[PromptMessage]) -> bytes:
    """Return the hash of a conversation's beginning through its first question, the same for each of its turns.

    Of the whole prompt if no user asks; empty if it has no hashes. ``prefix``: that of the same messages.
    """
    asked = next((number for number, message in enumerate(messages) if message.head == b"user"), len(messages))
    if asked < len(prefix.messages):
        return prefix.hashes[min(prefix.messages[asked], len(prefix.hashes)) - 1]
    return prefix.hashes[-1] if prefix.hashes else b""


class _LongTexts:
    """A cache of the hashes of recent long texts, such as shared system prompts and conversations.

    A lookup takes an eighth of the time of hashing. Lives on one event loop. A message is identified by its position,
    lengths and Python's keyed hashes; the chance of a collision, which would make a prompt look warm, is 2**-64.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, int, int, int, int], tuple[bytes, ...]] = {}
        #: Number of hashes cached.
        self.count = 0

    def hashes(self, previous: bytes, head: bytes, text: bytes, ends: tuple[int, ...]) -> tuple[bytes, ...]:
        """Return the hashes of a message that follows ``previous``; ``ends``: where its text's chunks end, bytes."""
        name = (previous, len(head), hash(head), len(text), hash(text))
        found = self._known.pop(name, None)
        if found is None:
            found = _hash_message(previous, head, text, ends)
            self.count += len(found)
        self._known[name] = found  # now the most recently used
        while self.count > KEPT_HASHES:
            self.count -= len(self._known.pop(next(iter(self._known))))
        return found


_long = _LongTexts()


def _hash_message(previous: bytes, head: bytes, text: bytes, ends: tuple[int, ...]) -> tuple[bytes, ...]:
    """Return the hashes of a message that follows ``previous``; ``ends``: where its text's chunks end, bytes."""
    hashes: list[bytes] = []
    front, start = len(head).to_bytes(4, "big") + head, 0
    for end in ends:
        previous = hashlib.blake2b(front + text[start:end], digest_size=16, key=previous).digest()
        hashes.append(previous)
        front, start = b"", end
    return tuple(hashes)


def _borders() -> Iterator[int]:
    """Yield where chunks of any text end, except the last."""
    end = CHUNK_BYTES
    while end < LARGEST_BYTES:
        yield end
        end += max(CHUNK_BYTES, end // GROWTH)


_BORDERS = tuple(_borders())


def _ends(length: int) -> tuple[int, ...]:
    """Return where the chunks of a text of ``length`` bytes end."""
    return (*_BORDERS[: bisect_left(_BORDERS, length)], length)
