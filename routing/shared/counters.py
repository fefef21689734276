"""Numbers under names, which every process of a host may change: tenants' counters, and what each process waits with.

They are in a table of fixed size in the memory that the processes share. A name has one of a few places, by its hash;
when all of those are taken it gets the one that was unused for longest. Of two processes that change a number at the
same moment one may lose its change, as everywhere in that memory (:mod:`routing.shared.state`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from routing.shared.state import COUNTER_WORDS, COUNTERS, SharedState

#: How many places a name may have.
_WAYS = 8
#: The most names in one message to other hosts about what this process charged.
MAX_CHARGES = 1000
#: What other hosts charge counts for a name that was used on this one at most so long ago, seconds: for a tenant that
#: waits here, too. Another one would come with a debt to tenants that did not wait for it.
RECENT_SECONDS = 10.0
#: An entry has four words: the name's hash, its number, its rank, and when it was last used, in seconds.
_NUMBER, _RANK, _USED_AT = 1, 2, 3


class CounterTable:
    """The table. Not thread-safe."""

    def __init__(self, state: SharedState, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds, the same in all processes."""
        self.state = state
        self.clock = clock
        self.keys = state.counters.cast("Q")
        self.numbers = state.counters.cast("d")
        #: What this process charged since its last message to other hosts, by the names' hashes; and when that was.
        self._charged: dict[int, float] = {}
        self._told_at = clock()

    def take_charges(self) -> dict[int, float]:
        """Return what this process charged since the last call; nothing if that was long ago.

        While there are no other hosts nothing is sent, and a host that joins later must not receive all of it at once.
        """
        found, self._charged = self._charged, {}
        told_at, self._told_at = self._told_at, self.clock()
        return found if self._told_at - told_at <= RECENT_SECONDS else {}

    def note(self, key: int, amount: float) -> None:
        """Keep a charge for :meth:`take_charges`."""
        if key in self._charged or len(self._charged) < MAX_CHARGES:
            self._charged[key] = self._charged.get(key, 0.0) + amount

    def charge_elsewhere(self, key: int, amount: float) -> None:
        """Record what a process of another host charged."""
        at = self.find(key)
        if at is not None and self.clock() - self.numbers[at + _USED_AT] <= RECENT_SECONDS:
            self.numbers[at + _NUMBER] += amount

    def find(self, key: int) -> int | None:
        """Return where the entry of a key begins, the same place in all processes; None if it has none."""
        places = self._places(key)
        keys = self.keys[places.start : places.stop : places.step].tolist()
        return places[keys.index(key)] if key in keys else None

    def place(self, key: int, number: float) -> int:
        """Return where the entry of a key begins; one that was not there has ``number`` before others can find it."""
        found = self.find(key)
        if found is not None:
            return found
        taken = min(self._places(key), key=lambda at: self.numbers[at + _USED_AT])
        self.numbers[taken + _NUMBER], self.numbers[taken + _RANK] = number, 0.0
        self.numbers[taken + _USED_AT] = self.clock()
        self.keys[taken] = key
        return taken

    def _places(self, key: int) -> range:
        first = key % (COUNTERS // _WAYS) * _WAYS
        return range(first * COUNTER_WORDS, (first + _WAYS) * COUNTER_WORDS, COUNTER_WORDS)


class Counter:
    """One number. It takes a place when it is changed; one that another name displaced begins again."""

    __slots__ = ("_at", "_key", "_least", "_table")

    def __init__(self, table: CounterTable, name: str, least: Counter | None = None) -> None:
        """``least``: what it begins with; by default 0."""
        self._table = table
        self._key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        self._least = least
        self._at = table.find(self._key)

    @property
    def value(self) -> float:
        """Return the number."""
        at = self._find()
        if at is not None:
            return self._table.numbers[at + _NUMBER]
        return self._least.value if self._least else 0.0

    def set(self, number: float, rank: int = 0) -> None:
        """Change the number and its rank; 0 is none."""
        at = self._find()
        if at is None:
            at = self._at = self._table.place(self._key, number)
        numbers = self._table.numbers
        numbers[at + _NUMBER], numbers[at + _RANK], numbers[at + _USED_AT] = number, rank, self._table.clock()

    def touch(self) -> None:
        """Record that the number is in use.

        Two processes that came with its name at the same moment may each have placed it; both go on with one place.
        """
        self._at = self._table.find(self._key)
        if self._at is None:
            self.set(self.value)
        else:
            self._table.numbers[self._at + _USED_AT] = self._table.clock()

    def charge(self, amount: float) -> None:
        """Add to the number, for other hosts, too."""
        self.set(self.value + amount)
        self._table.note(self._key, amount)

    def ranked(self, seconds: float) -> tuple[int, float] | None:
        """Return rank and number; None without a rank, or if they were not set for so long."""
        numbers, at = self._table.numbers, self._find()
        if at is None or not numbers[at + _RANK] or self._table.clock() - numbers[at + _USED_AT] > seconds:
            return None
        return int(numbers[at + _RANK]), numbers[at + _NUMBER]

    def _find(self) -> int | None:
        if self._at is None or self._table.keys[self._at] != self._key:
            self._at = self._table.find(self._key)
        return self._at
