"""Replicas of sessions: a bounded map of known ones, and rendezvous hashing for unknown ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

R = TypeVar("R", bound=Hashable)

#: Places where a session may be, the one used last first.
WAYS = 4
#: Longest time that a session may be remembered without a request.
LONGEST_TTL_SECONDS = 7 * 24 * 3600
#: An entry, from its lowest bits: the mark of the replica; the second in which the session was last seen, on a clock
#: that begins again after twelve days; the name of the session.
_MARK_BITS, _CLOCK_BITS = 16, 20
_MARK = (1 << _MARK_BITS) - 1
_CLOCK = (1 << _CLOCK_BITS) - 1
_NAME_SHIFT = _MARK_BITS + _CLOCK_BITS
_NAME_BITS = 64 - _NAME_SHIFT
#: Another process may have seen the session a moment later than this one looks.
_AHEAD_SECONDS = 60


class SessionMap:
    """The replica on which each recent session ran. Where a session may be, the one used longest ago is overwritten.

    Replicas are known by marks of 16 bits: a session whose replica is gone may seem at home on one in 65,536 others.
    Sessions are known by 28 bits and their place: a new one in 67 million may get the home of another.
    """

    def __init__(self, entries: memoryview) -> None:
        """``entries``: words, a multiple of ``WAYS`` of them; zero where no session was ever settled."""
        if not entries or len(entries) % WAYS:
            raise ValueError(f"the number of entries must be a multiple of {WAYS}")
        self._entries = entries

    def home(self, session: bytes, now: float, ttl_seconds: int) -> int | None:
        """Return the mark of the session's replica, and record that the session was seen.

        None: it is unknown, or was not seen for longer than ``ttl_seconds``. ``now``: seconds of a clock that all users
        of the entries share.
        """
        place, name = self._place(session)
        for entry in self._entries[place : place + WAYS]:
            if entry and entry >> _NAME_SHIFT == name:
                if _age(entry, now) > ttl_seconds:
                    return None
                seen = _entry(name, now, entry & _MARK)
                if seen != self._entries[place]:
                    self._put_first(place, seen)
                return entry & _MARK
        return None

    def settle(self, session: bytes, mark: int, now: float) -> None:
        """Record the session's replica."""
        place, name = self._place(session)
        self._put_first(place, _entry(name, now, mark))

    def _put_first(self, place: int, entry: int) -> None:
        """Move the entry of a session to the front, in place of its former one or of the last."""
        name = entry >> _NAME_SHIFT
        others = [each for each in self._entries[place : place + WAYS] if not each or each >> _NAME_SHIFT != name]
        for at, each in enumerate([entry, *others][:WAYS]):
            self._entries[place + at] = each

    def _place(self, session: bytes) -> tuple[int, int]:
        """Return where a session's places begin, and its name in an entry."""
        digest = int.from_bytes(hashlib.blake2b(session, digest_size=12).digest())
        return digest % (len(self._entries) // WAYS) * WAYS, digest >> 96 - _NAME_BITS


def _entry(name: int, now: float, mark: int) -> int:
    return name << _NAME_SHIFT | (int(now) & _CLOCK) << _MARK_BITS | mark


def _age(entry: int, now: float) -> int:
    """Return how many seconds ago an entry's session was last seen."""
    seen = entry >> _MARK_BITS & _CLOCK
    return (int(now) - seen + _AHEAD_SECONDS & _CLOCK) - _AHEAD_SECONDS


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
