"""What routing remembers, in one piece of memory that the processes of a host share.

Its sections, of 8-byte words:

- the table of warm prefixes and that of sessions, which every process writes;
- for each replica the slices of its cache, which every process writes;
- for each process and replica one row with its part of the load, which only that process writes.

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
MAX_REPLICAS = 256
#: Words of a replica's cache (:mod:`routing.warm_prefixes`), and a row of a load (:mod:`routing.replica_load`).
CACHE_WORDS = 2080
ROW = struct.Struct("20d")
#: A place whose replica no process has known for so long is given to another one.
REUSE_SECONDS = 60.0
WORD = 8
#: A place in the directory: the replica's key in two words, and when a process last knew it, milliseconds.
_ENTRY = struct.Struct("16sQ")
#: The memory begins with how many numbers of processes were ever used.
_DIRECTORY_AT = WORD
_CACHES_AT = _DIRECTORY_AT + MAX_REPLICAS * _ENTRY.size
_CACHE_BYTES = CACHE_WORDS * WORD
_ROWS_BYTES = MAX_REPLICAS * ROW.size
#: Where rows and tables begin.
_ROWS_AT = _CACHES_AT + MAX_REPLICAS * _CACHE_BYTES
_TABLES_AT = _ROWS_AT + MAX_PROCESSES * _ROWS_BYTES

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

    def look(self) -> None:
        """See which processes run."""


class Alone:
    """A process that shares its memory with no other."""

    process = 0

    def __init__(self) -> None:
        self.running = [True]

    def exclusive(self) -> AbstractContextManager[bool]:
        """Exclude nobody."""
        return nullcontext(True)

    def look(self) -> None:
        """See nobody."""


class ReplicaMemory:
    """The places of one replica with a cache that began empty."""

    __slots__ = ("_host", "_memory", "_rows_at", "cache", "key", "number", "shared")

    def __init__(self, key: bytes, memory: memoryview, cache: memoryview, rows_at: int, host: Host | None) -> None:
        """Without ``host`` they are outside any shared memory."""
        self.key = key
        self.shared = host is not None
        #: Distinguishes it in the tables.
        self.number = int.from_bytes(key[:8])
        self.cache = cache
        self._memory = memory
        self._rows_at = rows_at
        self._host = host or Alone()

    def own(self) -> tuple[float, ...]:
        """Return the row of this process."""
        return ROW.unpack_from(self._memory, self._rows_at + self._host.process * _ROWS_BYTES)

    def write(self, *values: float) -> None:
        """Set the row of this process."""
        ROW.pack_into(self._memory, self._rows_at + self._host.process * _ROWS_BYTES, *values)

    @property
    def has_peers(self) -> bool:
        """Return whether other processes have rows."""
        return len(self._host.running) > 1

    def peers(self) -> list[PeerRow]:
        """Return the rows of the other processes."""
        memory, at, own = self._memory, self._rows_at, self._host.process
        return [
            (runs, ROW.unpack_from(memory, at + process * _ROWS_BYTES))
            for process, runs in enumerate(self._host.running)
            if process != own
        ]


class SharedState:
    """The memory. Not thread-safe."""

    def __init__(self, memory: memoryview, prefix_entries: int, session_entries: int, host: Host | None = None) -> None:
        """``memory`` is of :func:`size` and was zero when its first process began."""
        tables = memory[_TABLES_AT : _TABLES_AT + (prefix_entries + session_entries) * WORD].cast("Q")
        self.prefixes = tables[:prefix_entries]
        self.sessions = tables[prefix_entries:]
        self.host = host or Alone()
        self._memory = memory
        self._header = memory[:WORD].cast("Q")
        self._header[0] = max(self._header[0], self.host.process + 1)

    @property
    def processes(self) -> int:
        """Return how many numbers of processes were ever used."""
        return self._header[0]

    def place(self, key: bytes, now: float) -> ReplicaMemory:
        """Return the places of a replica by its ``key``, 16 bytes; private ones if there is no room. Not for every
        request.
        """
        found = self._find(key)
        if found is None:
            with self.host.exclusive() as alone:
                found = (self._find(key) or self._take(key, now)) if alone else None
        if found is None:
            return private_place(key)
        self._seen(found, key, now)
        cache = self._memory[_CACHES_AT + found * _CACHE_BYTES :][:_CACHE_BYTES].cast("q")
        return ReplicaMemory(key, self._memory, cache, _ROWS_AT + found * ROW.size, self.host)

    def keep(self, memory: ReplicaMemory, now: float) -> ReplicaMemory:
        """Record that a replica is still known; return its places, new ones if they were given to another one."""
        found = self._find(memory.key)
        if found is not None and memory.shared:
            self._seen(found, memory.key, now)
            return memory
        again = self.place(memory.key, now)
        return again if again.shared or memory.shared else memory

    def _find(self, key: bytes) -> int | None:
        for place in range(MAX_REPLICAS):
            at = _DIRECTORY_AT + place * _ENTRY.size
            if self._memory[at : at + 16] == key:
                return place
        return None

    def _take(self, key: bytes, now: float) -> int | None:
        """Empty the place that has been unknown for longest, and return it; None if all are in use."""
        seen = [
            _ENTRY.unpack_from(self._memory, _DIRECTORY_AT + place * _ENTRY.size)[1] for place in range(MAX_REPLICAS)
        ]
        place = min(range(MAX_REPLICAS), key=seen.__getitem__)
        if seen[place] and now * 1000 - seen[place] < REUSE_SECONDS * 1000:
            return None
        cache_at = _CACHES_AT + place * _CACHE_BYTES
        self._memory[cache_at : cache_at + _CACHE_BYTES] = bytes(_CACHE_BYTES)
        for process in range(MAX_PROCESSES):
            row_at = _ROWS_AT + process * _ROWS_BYTES + place * ROW.size
            self._memory[row_at : row_at + ROW.size] = bytes(ROW.size)
        return place

    def _seen(self, place: int, key: bytes, now: float) -> None:
        _ENTRY.pack_into(self._memory, _DIRECTORY_AT + place * _ENTRY.size, key, int(now * 1000) + 1)


def size(prefix_entries: int, session_entries: int) -> int:
    """Return the bytes of a memory with so many entries."""
    return _TABLES_AT + (prefix_entries + session_entries) * WORD


def private(prefix_entries: int, session_entries: int) -> SharedState:
    """Return a memory of this process alone."""
    return SharedState(memoryview(bytearray(size(prefix_entries, session_entries))), prefix_entries, session_entries)


def private_place(key: bytes | None = None) -> ReplicaMemory:
    """Return places outside any shared memory."""
    cache = memoryview(bytearray(_CACHE_BYTES)).cast("q")
    return ReplicaMemory(key or secrets.token_bytes(16), memoryview(bytearray(ROW.size)), cache, 0, None)
