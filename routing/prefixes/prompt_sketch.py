"""A sketch of a prompt: hashes that say where two prompts part and what is equal behind that, and nothing else.

The tenant's advisor compares sketches. All hashes are keyed, so only Hearth can make one, and they are cut to
HASH_BYTES, so nobody can find a text by its hash.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from uuid import UUID

import msgspec

from routing.prefixes.prefix_hash import LARGEST_BYTES, PrefixHashes, PromptMessage

HASH_BYTES = 6
#: Where gateways keep them in the cache's Redis: each tenant's newest ones, by when they were sent (Unix s).
ROOM = "prompt-sketches"
MAX_SKETCHES = 3_000
KEPT_SECONDS = 7 * 24 * 3600
#: Hashes of a chain are kept at every depth up to this one, then at each that is 1/8 deeper, and at message borders.
EVERY_DEPTH = 16
#: Messages that are described, the first ones, and whose text behind the first BYTES is not.
MAX_MESSAGES = 16
MAX_MESSAGE_BYTES = 256 * 1024
#: The end of a message is hashed in steps of this, or of a quarter of what is already behind it.
TAIL_BYTES = 256
TAIL_GROWTH = 4
#: Characters of a role.
LONGEST_ROLE = 16


class MessageSketch(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One message. Its bytes include its role."""

    role: str
    #: Bytes of the prompt before it, and its own.
    start: int
    length: int
    #: Hashes of its last bytes, at the lengths of :func:`tail_lengths`, one after the other; the last covers all of it.
    tails: bytes

    def tails_by_length(self) -> Iterator[tuple[int, bytes]]:
        """Yield (bytes from the end, hash), the longest first."""
        for number, length in reversed(list(enumerate(tail_lengths(self.length)))):
            yield length, self.tails[number * HASH_BYTES : (number + 1) * HASH_BYTES]


class PromptSketch(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request's prompt. ``chain`` has a hash for each of ``ends``: equal hashes mean equal beginnings."""

    request_id: UUID
    ends: tuple[int, ...]
    chain: bytes
    #: The first ones; empty for a prompt that another process parsed.
    messages: tuple[MessageSketch, ...]
    #: A hash of each other field that can change the response, by its name.
    parameters: dict[str, bytes]

    def beginnings(self) -> Iterator[tuple[int, bytes]]:
        """Yield (bytes from the beginning, hash), the longest first; the first covers the whole prompt."""
        for number in range(len(self.ends) - 1, -1, -1):
            yield self.ends[number], self.chain[number * HASH_BYTES : (number + 1) * HASH_BYTES]

    @property
    def whole(self) -> bytes:
        """The hash of the whole prompt."""
        return self.chain[-HASH_BYTES:]


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: msgspec.msgpack.Decoder[PromptSketch] = msgspec.msgpack.Decoder(PromptSketch)


def encode(found: PromptSketch) -> bytes:
    """Return a sketch as bytes, about 200 for a short conversation and 1,500 at most."""
    return _encoder.encode(found)


def decode(items: Iterable[bytes]) -> list[PromptSketch]:
    """Return the sketches in the order of the items; what another version of Hearth wrote differently is left out."""
    found: list[PromptSketch] = []
    for each in items:
        with suppress(msgspec.MsgspecError):
            found.append(_decoder.decode(each))
    return found


def sketch(
    request_id: UUID,
    prefix: PrefixHashes,
    messages: Sequence[PromptMessage],
    parameters: Mapping[str, bytes],
    *,
    key: bytes,
) -> PromptSketch:
    """Return the sketch of a prompt. ``prefix``: its hashes, of at least one. ``key``: of at most 64 bytes.

    ``messages`` is empty where the texts are not at hand; ``parameters`` has each other field as JSON.
    """
    depths = _depths(prefix)
    return PromptSketch(
        request_id=request_id,
        ends=tuple(prefix.ends[depth - 1] for depth in depths),
        chain=b"".join([prefix.hashes[depth - 1][:HASH_BYTES] for depth in depths]),
        messages=tuple(_messages(messages, key)),
        parameters={name: _hash(value, key) for name, value in parameters.items()},
    )


def tail_lengths(length: int) -> tuple[int, ...]:
    """Return at which lengths, from its end, a message of ``length`` bytes has a hash; the last is all of it."""
    return (*_TAIL_BORDERS[: bisect_left(_TAIL_BORDERS, length)], length)


def _depths(prefix: PrefixHashes) -> list[int]:
    count = len(prefix.hashes)
    found = {*range(1, min(count, EVERY_DEPTH) + 1), count}
    found.update(depth for depth in prefix.messages[:MAX_MESSAGES] if 0 < depth <= count)
    depth = EVERY_DEPTH
    while (depth := depth + max(1, depth // 8)) < count:
        found.add(depth)
    return sorted(found)


def _messages(messages: Sequence[PromptMessage], key: bytes) -> Iterator[MessageSketch]:
    start = 0
    for message in messages[:MAX_MESSAGES]:
        whole = message.head + message.text
        if len(whole) > MAX_MESSAGE_BYTES:
            return
        yield MessageSketch(
            role=message.head.decode(errors="replace")[:LONGEST_ROLE],
            start=start,
            length=len(whole),
            tails=_tails(whole, key),
        )
        start += len(whole)


def _tails(text: bytes, key: bytes) -> bytes:
    size, previous = len(text), key
    hashes: list[bytes] = []
    for nearer, farther in pairwise((0, *tail_lengths(size))):
        previous = hashlib.blake2b(text[size - farther : size - nearer], digest_size=16, key=previous).digest()
        hashes.append(previous[:HASH_BYTES])
    return b"".join(hashes)


def _hash(value: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=HASH_BYTES, key=key).digest()


def _borders() -> Iterator[int]:
    end = TAIL_BYTES
    while end < LARGEST_BYTES:
        yield end
        end += max(TAIL_BYTES, end // TAIL_GROWTH)


_TAIL_BORDERS = tuple(_borders())
