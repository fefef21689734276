"""Replicas of sessions: a bounded map of known ones, and rendezvous hashing for unknown ones."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)


class SessionMap(Generic[R]):
    """The replica on which each recent session ran, evicting the least recently used. Not thread-safe."""

    def __init__(self, capacity: int = 100_000) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._capacity = capacity
        self._homes: OrderedDict[bytes, R] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, session: bytes) -> R | None:
        """Return the session's replica, or None if unknown."""
        replica = self._homes.get(session)
        if replica is not None:
            self._homes.move_to_end(session)
        return replica

    def settle(self, session: bytes, replica: R) -> None:
        """Record the session's replica."""
        self._homes[session] = replica
        self._homes.move_to_end(session)
        if len(self._homes) > self._capacity:
            self._homes.popitem(last=False)


def rendezvous(session: bytes, replicas: Sequence[R], name: Callable[[R], bytes]) -> list[R]:
    """Return the replicas in the session's order of preference (highest random weight first).

    Adding or removing a replica moves only the sessions that prefer it (Thaler and Ravishankar, 1998).
    """
    return sorted(
        replicas,
        key=lambda replica: hashlib.blake2b(name(replica), digest_size=8, key=session[:64]).digest(),
        reverse=True,
    )
