"""Which beginnings of prompts are warm on which replicas: one table of fixed size for all replicas and tenants.

An entry says when a replica last used one link of a prompt's chain. :class:`ReplicaCache` knows how many of a replica's
tokens were last used when, hence since when whatever was not used again is evicted. So no entry is removed when its
link is evicted or its replica restarts; the table overwrites what was used longest ago.

An engine may keep in host memory what its cache evicts. It copies each prompt there when it computes it, so host memory
holds what was last used too, only more of it: a second such count over the same entries says since when something is in
neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from routing.prefixes.prefix_hash import BYTES_PER_TOKEN, PrefixHashes
from routing.shared.state import CACHE_WORDS, ReplicaMemory, private_place

#: Places where a link may be. When all are taken the one used longest ago is overwritten.
WAYS = 4
#: Into about how many slices of time the use of a cache is divided; a whole slice is given up at once. While tokens are
#: used again often there are more of them.
SLICES = 128
#: One answer that contradicts what is assumed gives up at most this part of a cache: a tenant may know how to make an
#: engine compute what it holds.
CORRECTED_PART = 8
#: The upper bits of an entry identify its link and replica, the lower ones are when it was last used.
STAMP_BITS = 40
_STAMP = (1 << STAMP_BITS) - 1
_WORD = (1 << 64) - 1
#: 2**64 divided by the golden ratio: odd, so that multiplying by it loses nothing.
_SPREAD = 0x9E3779B97F4A7C15
#: Words of a cache's memory: how many slices were ever begun and given up, what was added since the last one began,
#: what all hold, and rings of when each began and how many tokens were last used in it.
_BEGUN, _GONE, _ADDED, _HELD, _STARTS = range(5)
_RING = (CACHE_WORDS - _STARTS) // 2
_TOKENS = _STARTS + _RING


class ReplicaCache:
    """What one replica's prefix cache holds, as far as requests show: what was used longest ago is evicted first."""

    __slots__ = ("_words", "capacity", "host", "salt")

    def __init__(self, capacity: int, memory: ReplicaMemory | None = None, *, host_capacity: int = 0) -> None:
        """Capacities are in tokens. Host memory that is no larger than the cache has nothing that the cache has not."""
        memory = memory or private_place()
        #: Distinguishes it in the table.
        self.salt = memory.number * _SPREAD & _WORD
        self.capacity = capacity
        #: What host memory holds.
        self.host = HostMemory(host_capacity, memory) if host_capacity > capacity else None
        self._words = memory.cache

    @property
    def oldest(self) -> int:
        """Return the time such that what was last used before is evicted."""
        return max(1, self._words[_STARTS + self._words[_GONE] % _RING])

    @property
    def present(self) -> int:
        """Return when the present slice began."""
        return self._words[_STARTS + self._words[_BEGUN] % _RING]

    @property
    def aging(self) -> int:
        """Return the time such that what was last used before is among the quarter that is evicted next."""
        gone, begun = self._words[_GONE], self._words[_BEGUN]
        return self._words[_STARTS + (gone + (begun - gone) // 4) % _RING]

    def move(self, tokens: int, before: int) -> None:
        """Count tokens that it holds, last used at ``before``, as used in the present slice."""
        if not tokens:
            return
        words = self._words
        words[_TOKENS + self._slice(before) % _RING] -= tokens
        words[_TOKENS + words[_BEGUN] % _RING] += tokens

    def add(self, tokens: int, stamp: int) -> None:
        """Count tokens that its engine computed as used at ``stamp``; negative: that many fewer than were counted."""
        if stamp >= self.oldest:
            words = self._words
            words[_TOKENS + self._slice(stamp) % _RING] += tokens
            words[_HELD] += tokens
            words[_ADDED] += tokens

    def advance(self, now: int) -> int:
        """Evict what no longer fits, and begin a slice if the present one is full; return the time to stamp."""
        words = self._words
        begun = words[_BEGUN] = max(words[_BEGUN], words[_GONE])  # whoever was stopped in here may have set it back
        # Once half of the ring is in use, only what was added counts: there is no more of it than the cache can hold.
        has_room = begun - words[_GONE] < _RING // 2
        tokens = words[_TOKENS + begun % _RING] if has_room else words[_ADDED]
        if tokens * SLICES >= self.capacity and now >= self.present:
            begun += 1
            words[_STARTS + begun % _RING] = now + 1  # what was used at this very time belongs to the slice before
            words[_TOKENS + begun % _RING] = 0
            words[_BEGUN], words[_ADDED] = begun, 0
            if begun - words[_GONE] >= _RING - 1:
                words[_GONE] += 1
            words[_HELD] = sum(words[_TOKENS + each % _RING] for each in range(words[_GONE], begun + 1))
        while words[_HELD] > self.capacity and words[_GONE] < begun:
            words[_HELD] -= words[_TOKENS + words[_GONE] % _RING]
            words[_GONE] += 1
        return max(now, self.present)

    def hold(self, use: Use) -> None:
        """Count what was new in a prompt as computed, and held from then on."""
        self.add(use.new_tokens, use.stamp)
        self.add_in_host(use.new_in_host, use.stamp)

    def add_in_host(self, tokens: int, stamp: int) -> None:
        """Count tokens as used at ``stamp`` in host memory; negative: that many fewer than were counted."""
        if self.host is not None:
            self.host.add(tokens, stamp)

    def scale(self, use: Use, factor: float) -> int:
        """Correct what host memory was taken to hold of a prompt that has ``factor`` times as many tokens.

        Answers are not copied there, so what an engine computed beyond the prompt counts for the cache alone. Returns
        how many tokens that added.
        """
        more = int(use.new_in_host * (factor - 1))
        self.add_in_host(more, use.stamp)
        return more

    def correct(self, use: Use) -> None:
        """Evict what was last used as long ago as a prompt was, because its engine no longer held it."""
        if self.host is not None:
            self.host.evict(use.before_in_host)
        if self.host is None or use.before_in_host >= self.oldest:
            self.evict(use.before)

    def evict(self, stamp: int) -> None:
        """Evict what was last used up to ``stamp``, at most an eighth of the cache."""
        words = self._words
        least = words[_HELD] - self.capacity // CORRECTED_PART
        last = min(self._slice(stamp), words[_BEGUN] - 1)
        while words[_GONE] <= last and words[_HELD] > least:
            words[_HELD] -= words[_TOKENS + words[_GONE] % _RING]
            words[_GONE] += 1

    def _slice(self, stamp: int) -> int:
        """Return the number of the slice that a time is in, by halves."""
        words = self._words
        low, high = words[_GONE], words[_BEGUN] + 1
        while high - low > 1:
            middle = (low + high) // 2
            if words[_STARTS + middle % _RING] <= stamp:
                low = middle
            else:
                high = middle
        return low


class HostMemory(ReplicaCache):
    """What one engine holds in host memory, what its cache holds included."""

    __slots__ = ()

    def __init__(self, capacity: int, memory: ReplicaMemory) -> None:
        super().__init__(capacity, memory)
        self._words = memory.host

    def renew(self, spans: Sequence[tuple[int, int]], stamp: int) -> tuple[int, int]:
        """Count a prompt as used now; return how many of its tokens are new, and when the rest was last used first.

        ``spans``: the tokens of each of its links, and when that was last used before; 0 if never. New tokens are not
        counted as held, see :meth:`add`.
        """
        oldest, present = self.oldest, self.present
        new, earliest = 0, stamp
        for before, group in groupby(spans, itemgetter(1)):  # most of a prompt was last used at one time
            tokens = sum(each for each, _ in group)
            if before < oldest:
                new += tokens
            else:
                earliest = min(earliest, before)
                if before < present:
                    self.move(tokens, before)
        return new, earliest

    def put_back(self, tokens: int, stamp: int, before: int) -> None:
        """Count tokens that were used at ``stamp`` as last used ``before`` that, because that use did not happen."""
        if stamp < self.oldest:
            return
        words = self._words
        words[_TOKENS + self._slice(stamp) % _RING] -= tokens
        if before < self.oldest:
            words[_HELD] -= tokens
        else:
            words[_TOKENS + self._slice(before) % _RING] += tokens


@dataclass(frozen=True, slots=True)
class Use:
    """When a prompt was used, how many of its tokens were not held then, and when the rest was last used before."""

    stamp: int
    new_tokens: int
    #: The earliest such time; equal to ``stamp`` if nothing was held.
    before: int
    #: The same of host memory; and how many leading links were in the cache, where there is host memory.
    new_in_host: int = 0
    before_in_host: int = 0
    cached_links: int = 0


class WarmPrefixes:
    """The table. Not thread-safe."""

    def __init__(self, entries: memoryview) -> None:
        """``entries``: words, a power of two of them; zero where nothing was ever used."""
        if len(entries) < WAYS or len(entries) & (len(entries) - 1):
            raise ValueError("the number of entries must be a power of two")
        self._entries = entries
        self._mask = (len(entries) - 1) & ~(WAYS - 1)

    def depth(self, prefix: PrefixHashes, cache: ReplicaCache) -> int:
        """Return how many leading links of a prompt are in a replica's cache."""
        return self._search(prefix, cache, cache.oldest, 0)

    def reach(self, prefix: PrefixHashes, cache: ReplicaCache, depth: int) -> int:
        """Return how many are in its cache or in host memory; ``depth``: those in its cache."""
        host = cache.host
        return depth if host is None else self._search(prefix, cache, min(host.oldest, cache.oldest), depth)

    def _search(self, prefix: PrefixHashes, cache: ReplicaCache, oldest: int, low: int) -> int:
        """Return how many leading links were last used since ``oldest``; the first ``low`` were.

        Searches by halves, because the beginning of a chain is never evicted before its end.
        """
        links = prefix.hashes
        if low == len(links) or not self._is_warm(links[low], cache, oldest):
            return low
        if self._is_warm(links[-1], cache, oldest):
            return len(links)
        low, high = low + 1, len(links)
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_warm(links[middle - 1], cache, oldest):
                low = middle
            else:
                high = middle
        return low

    def use(self, prefix: PrefixHashes, cache: ReplicaCache, now: int) -> Use:
        """Record that a replica uses a prompt, and return how much of it is new there.

        New tokens are not counted as held, so they evict nothing yet; see :meth:`ReplicaCache.add`. ``now``: ticks of
        any clock that never goes back, below 2**40.
        """
        entries, mask = self._entries, self._mask
        salt = cache.salt
        start = new_tokens = moved = moved_from = 0
        stamp, host = cache.advance(now), cache.host
        if host is not None:
            stamp = max(stamp, host.advance(now))
        spans: list[tuple[int, int]] = []
        earliest = stamp
        oldest, present = cache.oldest, cache.present
        last = len(prefix.hashes)
        for depth, (link, byte) in enumerate(zip(prefix.hashes, prefix.ends, strict=True), start=1):
            name = ((int.from_bytes(link[:8]) ^ salt) * _SPREAD) & _WORD
            place, tag = (name >> 20) & mask, (name << STAMP_BITS) & _WORD
            chosen, before, least = place, 0, _WORD
            for at in range(place, place + WAYS):
                entry = entries[at]
                if entry & ~_STAMP == tag:
                    chosen, before = at, entry & _STAMP
                    break
                if entry & _STAMP < least:
                    chosen, least = at, entry & _STAMP
            entries[chosen] = tag | stamp
            end = prefix.tokens if depth == last else byte // BYTES_PER_TOKEN
            if before < oldest:
                new_tokens += end - start
            elif before < earliest:
                earliest = before
            if oldest <= before < present:
                if before != moved_from:  # most of a prompt was last used at one time
                    cache.move(moved, moved_from)
                    moved, moved_from = 0, before
                moved += end - start
            if host is not None:
                spans.append((end - start, before))
            start = end
        cache.move(moved, moved_from)
        if host is None:
            return Use(stamp, new_tokens, earliest)
        cached = next((number for number, (_, before) in enumerate(spans) if before < oldest), len(spans))
        return Use(stamp, new_tokens, earliest, *host.renew(spans, stamp), cached)

    def drop(self, prefix: PrefixHashes, depth: int, cache: ReplicaCache, use: Use, used_at: int) -> None:
        """Record that a replica does not hold a prompt beyond its first links, because it was not computed.

        ``depth``: the links that it held before the ``use``. Those that were in host memory alone were last used when
        they were before. ``used_at``: when the prompt was last counted as used for this request.
        """
        entries, host = self._entries, cache.host
        kept = depth if host is None else min(depth, use.cached_links)
        put_back = 0
        for number, link in enumerate(prefix.hashes[kept:], start=kept):
            place, tag = self._place(link, cache)
            for at in range(place, place + WAYS):
                if entries[at] & ~_STAMP != tag:
                    continue
                if number >= depth:
                    entries[at] = 0
                elif entries[at] & _STAMP == used_at:  # no other request has used it since
                    entries[at] = tag | use.before_in_host
                    put_back += prefix.tokens_of(number + 1) - prefix.tokens_of(number)
        if host is not None and put_back:
            host.put_back(put_back, used_at, use.before_in_host)

    def _is_warm(self, link: bytes, cache: ReplicaCache, oldest: int) -> bool:
        place, tag = self._place(link, cache)
        for entry in self._entries[place : place + WAYS]:
            if entry & ~_STAMP == tag:
                return entry & _STAMP >= oldest
        return False

    def _place(self, link: bytes, cache: ReplicaCache) -> tuple[int, int]:
        """Return where a link's places begin, and the bits by which an entry is its own."""
        name = ((int.from_bytes(link[:8]) ^ cache.salt) * _SPREAD) & _WORD
        return (name >> 20) & self._mask, (name << STAMP_BITS) & _WORD
