"""Replicas of sessions: a bounded map of known ones, and rendezvous hashing for unknown ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

R = TypeVar("R", bound=Hashable)

#: Places where a session may be, the one used last first.
WAYS = 4
#: The upper bits of an entry identify its session, the lower ones its replica.
_MARK_BITS = 16
_MARK = (1 << _MARK_BITS) - 1


class SessionMap:
    """The replica on which each recent session ran. Where a session may be, the one used longest ago is overwritten.

    Replicas are known by marks of 16 bits: a session whose replica is gone may seem at home on one in 65,536 others.
    """

    def __init__(self, entries: memoryview) -> None:
        """``entries``: words, a multiple of ``WAYS`` of them; zero where no session was ever settled."""
        if not entries or len(entries) % WAYS:
            raise ValueError(f"the number of entries must be a multiple of {WAYS}")
        self._entries = entries

    def home(self, session: bytes) -> int | None:
        """Return the mark of the session's replica, or None if unknown."""
        place, name = self._place(session)
        for entry in self._entries[place : place + WAYS]:
            if entry and entry & ~_MARK == name:
                if entry != self._entries[place]:
                    self._put_first(place, entry)
                return entry & _MARK
        return None

    def settle(self, session: bytes, mark: int) -> None:
        """Record the session's replica."""
        place, name = self._place(session)
        self._put_first(place, name | mark)

    def _put_first(self, place: int, entry: int) -> None:
        """Move the entry of a session to the front, in place of its former one or of the last."""
        others = [each for each in self._entries[place : place + WAYS] if each & ~_MARK != entry & ~_MARK]
        for at, each in enumerate([entry, *others][:WAYS]):
            self._entries[place + at] = each

    def _place(self, session: bytes) -> tuple[int, int]:
        """Return where a session's places begin, and its name in an entry."""
        digest = int.from_bytes(hashlib.blake2b(session, digest_size=12).digest())
        return digest % (len(self._entries) // WAYS) * WAYS, (digest >> 48) << _MARK_BITS


def mark(replica: bytes) -> int:
    """Return the mark of a replica by its name."""
    return int.from_bytes(hashlib.blake2b(replica, digest_size=2).digest()) or 1


def rendezvous(session: bytes, replicas: Sequence[R], name: Callable[[R], bytes]) -> list[R]:
    """Return the replicas in the session's order of preference (highest random weight first).

    Adding or removing a replica moves only the sessions that prefer it (Thaler and Ravishankar, 1998).
    """
    return sorted(
        replicas,
        key=lambda replica: hashlib.blake2b(name(replica), digest_size=8, key=session[:64]).digest(),
        reverse=True,
    )
