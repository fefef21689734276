"""What routing remembers, in one piece of memory that the processes of a host share.

Its sections, of 8-byte words:

- the table of warm prefixes and that of sessions, which every process writes;
- for each replica the slices of its cache and of its host memory, which every process writes;
- the counters of tenants that wait (:mod:`routing.shared.counters`), which every process writes;
- for each process and replica one row with its part of the load, which only that process writes; processes of other
  hosts have rows too, which one process of this host writes for them (:mod:`routing.exchange`).

Nothing waits for a lock. A word is written whole; of two processes that change one at the same moment one may lose its
change, which makes an estimate a little wrong until the engine evicts what it was about. Sums that must not drift are
made of rows, each with a single writer. Only to take a place in the memory do processes exclude each other.
"""

from __future__ import annotations

import secrets
import struct
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

MAX_PROCESSES = 16
MAX_REMOTE = 48
MAX_REPLICAS = 256
#: Words of a replica's cache, and as many of its host memory (:mod:`routing.prefixes.warm_prefixes`); and a row of
#: a load (:mod:`routing.replicas.load`).
CACHE_WORDS = 2080
ROW = struct.Struct("21d")
#: Entries of the table of counters, and words of each.
COUNTERS = 1 << 13
COUNTER_WORDS = 4
#: A row begins with the sums from which positions are counted, which never go back while its replica has its place.
_POSITIONS_BYTES = 4 * 8
#: A place whose replica no process has known for so long, or whose remote process was silent, is given to another one.
REUSE_SECONDS = 60.0
#: After so long a silence a remote process is taken for dead.
SILENT_SECONDS = 2.0
WORD = 8
#: A place in a directory: its owner's key in two words, and when that was last known, milliseconds.
_ENTRY = struct.Struct("16sQ")
#: The memory begins with how many numbers of processes were ever used, and with a name of its own.
_NAME_AT, _NAME_BYTES = WORD, 16
_DIRECTORY_AT = _NAME_AT + _NAME_BYTES
_REMOTE_AT = _DIRECTORY_AT + MAX_REPLICAS * _ENTRY.size
_CACHES_AT = _REMOTE_AT + MAX_REMOTE * _ENTRY.size
_CACHE_BYTES = 2 * CACHE_WORDS * WORD
_ROWS_BYTES = MAX_REPLICAS * ROW.size
#: Where rows and tables begin.
_ROWS_AT = _CACHES_AT + MAX_REPLICAS * _CACHE_BYTES
_COUNTERS_AT = _ROWS_AT + (MAX_PROCESSES + MAX_REMOTE) * _ROWS_BYTES
_TABLES_AT = _COUNTERS_AT + COUNTERS * COUNTER_WORDS * WORD

#: A row, and whether its process runs.
PeerRow = tuple[bool, tuple[float, ...]]


class Host(Protocol):
    """The processes that share a memory."""

    #: The number of this one.
    process: int
    #: For each number below the highest that was ever taken, whether that process runs.
    running: list[bool]

    def exclusive(self) -> AbstractContextManager[bool]:
        """Exclude the other processes, or yield False if that would have to wait."""

    def look(self, processes: int) -> None:
        """See which of the first ``processes`` run."""


class Alone:
    """A process that shares its memory with no other."""

    process = 0

    def __init__(self) -> None:
        self.running = [True]

    def exclusive(self) -> AbstractContextManager[bool]:
        """Exclude nobody."""
        return nullcontext(True)

    def look(self, processes: int) -> None:
        """See nobody."""


class ReplicaMemory:
    """The places of one replica with a cache that began empty."""

    __slots__ = ("_memory", "_own_at", "_rows_at", "_state", "cache", "host", "key", "number", "place", "shared")

    def __init__(
        self, key: bytes, memory: memoryview, cache: memoryview, place: int, state: SharedState | None
    ) -> None:
        """``cache``: its words and those of host memory. Without ``state`` they are outside any shared memory."""
        self.key = key
        self.shared = state is not None
        #: Distinguishes it in the tables.
        self.number = int.from_bytes(key[:8])
        self.cache = cache[:CACHE_WORDS]
        self.host = cache[CACHE_WORDS:]
        self._memory = memory
        self.place = place
        self._rows_at = _ROWS_AT + place * ROW.size if state else 0
        self._own_at = self._rows_at + (state.host.process * _ROWS_BYTES if state else 0)
        self._state = state

    def own(self) -> tuple[float, ...]:
        """Return the row of this process."""
        return ROW.unpack_from(self._memory, self._own_at)

    def write(self, *values: float) -> None:
        """Set the row of this process."""
        ROW.pack_into(self._memory, self._own_at, *values)

    @property
    def has_peers(self) -> bool:
        """Return whether other processes have rows."""
        return self._state is not None and bool(self._state.others)

    def peers(self) -> list[PeerRow]:
        """Return the rows of the other processes."""
        others = self._state.others if self._state is not None else []
        return [(runs, self.row(process)) for process, runs in others]

    def row(self, process: int) -> tuple[float, ...]:
        """Return the row of a process by its number."""
        return ROW.unpack_from(self._memory, self._rows_at + process * _ROWS_BYTES)

    def write_row(self, process: int, *values: float) -> None:
        """Set the row of a remote process."""
        ROW.pack_into(self._memory, self._rows_at + process * _ROWS_BYTES, *values)


class SharedState:
    """The memory. Not thread-safe."""

    def __init__(self, memory: memoryview, prefix_entries: int, session_entries: int, host: Host | None = None) -> None:
        """``memory`` is of :func:`size` and was zero when its first process began."""
        tables = memory[_TABLES_AT : _TABLES_AT + (prefix_entries + session_entries) * WORD].cast("Q")
        self.prefixes = tables[:prefix_entries]
        self.sessions = tables[prefix_entries:]
        self.counters = memory[_COUNTERS_AT:_TABLES_AT]
        self.host = host or Alone()
        self._memory = memory
        self._header = memory[:WORD].cast("Q")
        self._header[0] = max(self._header[0], self.host.process + 1)
        if not any(self.name):
            memory[_NAME_AT : _NAME_AT + _NAME_BYTES] = secrets.token_bytes(_NAME_BYTES)
        #: The numbers of the other processes that have rows, and whether each runs.
        self.others: list[tuple[int, bool]] = []
        self.look(0.0)

    def look(self, now: float) -> None:
        """See which other processes run."""
        self.host.look(self.processes)
        here = [(number, runs) for number, runs in enumerate(self.host.running) if number != self.host.process]
        self.others = here + [
            (MAX_PROCESSES + place, now * 1000 - seen < SILENT_SECONDS * 1000)
            for place in range(MAX_REMOTE)
            if (seen := self._last_known(_REMOTE_AT, place))
        ]

    @property
    def name(self) -> bytes:
        """Return 16 bytes that distinguish the memory from those of other hosts."""
        return bytes(self._memory[_NAME_AT : _NAME_AT + _NAME_BYTES])

    @property
    def is_first(self) -> bool:
        """Return whether this process is the first of those that run."""
        return not any(runs for number, runs in self.others if number < self.host.process)

    @property
    def remote_processes(self) -> int:
        """Return how many processes of other hosts run."""
        return sum(runs for number, runs in self.others if number >= MAX_PROCESSES)

    @property
    def processes(self) -> int:
        """Return how many numbers of processes were ever used."""
        return self._header[0]

    def place(self, key: bytes, now: float) -> ReplicaMemory:
        """Return the places of a replica by its ``key``, 16 bytes; private ones if there is no room. Not for every
        request.
        """
        found = self._find_or_take(_DIRECTORY_AT, MAX_REPLICAS, key, now)
        if found is None:
            return private_place(key)
        cache = self._memory[_CACHES_AT + found * _CACHE_BYTES :][:_CACHE_BYTES].cast("q")
        return ReplicaMemory(key, self._memory, cache, found, self)

    def keep(self, memory: ReplicaMemory, now: float) -> ReplicaMemory:
        """Record that a replica is still known; return its places, new ones if they were given to another one."""
        if memory.shared and self._key(_DIRECTORY_AT, memory.place) == memory.key:
            self._know(_DIRECTORY_AT, memory.place, memory.key, now)
            return memory
        again = self.place(memory.key, now)
        return again if again.shared or memory.shared else memory

    def remote(self, key: bytes, now: float) -> int | None:
        """Return the number of a process of another host by its ``key``, 16 bytes; None if there is no room."""
        found = self._find_or_take(_REMOTE_AT, MAX_REMOTE, key, now)
        return None if found is None else MAX_PROCESSES + found

    def _find_or_take(self, directory: int, places: int, key: bytes, now: float) -> int | None:
        found = self._find(directory, places, key)
        if found is None:
            with self.host.exclusive() as alone:
                if alone:  # another process may have been quicker
                    found = self._find(directory, places, key)
                    found = self._take(directory, places, now) if found is None else found
                    if found is not None:
                        self._know(directory, found, key, now)
        else:
            self._know(directory, found, key, now)
        return found

    def _find(self, directory: int, places: int, key: bytes) -> int | None:
        for place in range(places):
            if self._key(directory, place) == key:
                return place
        return None

    def _key(self, directory: int, place: int) -> memoryview:
        at = directory + place * _ENTRY.size
        return self._memory[at : at + 16]

    def _take(self, directory: int, places: int, now: float) -> int | None:
        """Empty the place that has been unknown for longest, and return it; None if all are in use."""
        known = [self._last_known(directory, place) for place in range(places)]
        place = min(range(places), key=known.__getitem__)
        if known[place] and now * 1000 - known[place] < REUSE_SECONDS * 1000:
            return None
        if directory == _REMOTE_AT:  # its rows go on from their positions
            rows_at = _ROWS_AT + (MAX_PROCESSES + place) * _ROWS_BYTES
            for at in range(rows_at, rows_at + _ROWS_BYTES, ROW.size):
                self._empty(at + _POSITIONS_BYTES, ROW.size - _POSITIONS_BYTES)
        else:
            self._empty(_CACHES_AT + place * _CACHE_BYTES, _CACHE_BYTES)
            for process in range(MAX_PROCESSES + MAX_REMOTE):
                self._empty(_ROWS_AT + process * _ROWS_BYTES + place * ROW.size, ROW.size)
        return place

    def _empty(self, at: int, length: int) -> None:
        self._memory[at : at + length] = bytes(length)

    def _know(self, directory: int, place: int, key: bytes, now: float) -> None:
        _ENTRY.pack_into(self._memory, directory + place * _ENTRY.size, key, int(now * 1000) + 1)

    def _last_known(self, directory: int, place: int) -> int:
        return int(_ENTRY.unpack_from(self._memory, directory + place * _ENTRY.size)[1])


def size(prefix_entries: int, session_entries: int) -> int:
    """Return the bytes of a memory with these numbers of entries."""
    return _TABLES_AT + (prefix_entries + session_entries) * WORD


def private(prefix_entries: int, session_entries: int) -> SharedState:
    """Return a memory of this process alone."""
    return SharedState(memoryview(bytearray(size(prefix_entries, session_entries))), prefix_entries, session_entries)


def private_place(key: bytes | None = None) -> ReplicaMemory:
    """Return places outside any shared memory."""
    cache = memoryview(bytearray(_CACHE_BYTES)).cast("q")
    return ReplicaMemory(key or secrets.token_bytes(16), memoryview(bytearray(ROW.size)), cache, 0, None)
