"""Choose the replica for one request: its session's home, else the warmest, else the least loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

import msgspec

from routing.errors import NoReplica
from routing.load_tracker import LoadTracker
from routing.prefix_hash import PrefixHashes
from routing.prefix_index import PrefixIndex
from routing.sessions import SessionMap, rendezvous

Reason = Literal["session", "prefix", "load", "only"]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Where one request goes, and why."""

    replica_id: UUID
    reason: Reason
    #: Estimate of the prompt tokens that are warm there.
    warm_tokens: int
    #: Tokens counted on the load board until :meth:`Router.finish`.
    tokens: int


class RoutingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is, as far as routing cares. ``session`` is a tenant-scoped name, or None."""

    prefix: PrefixHashes
    session: bytes | None
    max_new_tokens: int


class Router:
    """Sessions, prefixes and loads of one process. Not thread-safe: it lives on one event loop."""

    def __init__(self, *, index_capacity: int = 262_144, session_capacity: int = 100_000) -> None:
        self.prefixes: PrefixIndex[UUID] = PrefixIndex(index_capacity)
        self.sessions: SessionMap[UUID] = SessionMap(session_capacity)
        self.loads: LoadTracker[UUID] = LoadTracker()

    def choose(self, ask: RoutingRequest, candidates: Sequence[UUID]) -> Choice:
        """Choose among ``candidates`` and count the request in. Raises NoReplica when there is none.

        Every choice must be ended by :meth:`finish`, whatever became of the request.
        """
        if not candidates:
            raise NoReplica
        depths = self.prefixes.depths(ask.prefix)
        replica, reason = self._pick(ask, candidates, depths)
        tokens = ask.prefix.tokens + ask.max_new_tokens
        self.loads.take(replica, tokens)
        self.prefixes.insert(ask.prefix, replica)
        if ask.session is not None:
            self._settle(ask.session, replica, candidates)
        warm = ask.prefix.tokens_of(depths.get(replica, 0))
        return Choice(replica_id=replica, reason=reason, warm_tokens=warm, tokens=tokens)

    def finish(self, choice: Choice) -> None:
        """Count the request out."""
        self.loads.give_back(choice.replica_id, choice.tokens)

    def forget(self, replica: UUID) -> None:
        """Drop what a replica knew: it stopped, or its engine restarted with an empty cache.

        Its sessions keep their record: it is not followed while the replica is no candidate.
        """
        self.prefixes.forget(replica)
        self.loads.forget(replica)

    def _pick(self, ask: RoutingRequest, candidates: Sequence[UUID], depths: dict[UUID, int]) -> tuple[UUID, Reason]:
        if len(candidates) == 1:
            return candidates[0], "only"
        open_to = self.loads.below_bound(candidates, ask.prefix.tokens + ask.max_new_tokens)
        if ask.session is not None:
            placed = self._by_session(ask.session, candidates, open_to)
            if placed is not None:
                return placed, "session"
        warm = {replica: depth for replica, depth in depths.items() if replica in open_to}
        best = max(warm.values(), default=0)
        if best > ask.prefix.system_hashes:
            return min((r for r, depth in warm.items() if depth == best), key=self.loads.order), "prefix"
        # Nobody is warm beyond a shared system prompt; following that alone would pile everybody up on one replica.
        return min(candidates, key=self.loads.order), "load"

    def _by_session(self, session: bytes, candidates: Sequence[UUID], open_to: set[UUID]) -> UUID | None:
        home = self.sessions.home(session)
        if home in candidates:
            return home if home in open_to else None
        return next((r for r in rendezvous(session, candidates, lambda r: r.bytes) if r in open_to), None)

    def _settle(self, session: bytes, replica: UUID, candidates: Sequence[UUID]) -> None:
        """Record a session's first place, and a new one only when the old is gone: one busy moment moves nobody."""
        home = self.sessions.home(session)
        if home is None or home not in candidates:
            self.sessions.settle(session, replica)
