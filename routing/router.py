"""Choose the replica for one request: its session's replica, else the warmest, else the least loaded."""

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
    """The replica for one request, and the reason."""

    replica_id: UUID
    reason: Reason
    #: Estimated prompt tokens in its prefix cache.
    warm_tokens: int
    #: Tokens counted as load until :meth:`Router.finish`.
    tokens: int


class RoutingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a request that routing uses. ``session`` is a tenant-scoped name, or None."""

    prefix: PrefixHashes
    session: bytes | None
    max_new_tokens: int


class Router:
    """Sessions, prefixes and loads known to one process. Not thread-safe: lives on one event loop."""

    def __init__(self, *, index_capacity: int = 262_144, session_capacity: int = 100_000) -> None:
        self.prefixes: PrefixIndex[UUID] = PrefixIndex(index_capacity)
        self.sessions: SessionMap[UUID] = SessionMap(session_capacity)
        self.loads: LoadTracker[UUID] = LoadTracker()

    def choose(self, request: RoutingRequest, candidates: Sequence[UUID]) -> Choice:
        """Choose among ``candidates`` and count the request as load. Raises NoReplica if there are none.

        Call :meth:`finish` for every choice, however the request ends.
        """
        if not candidates:
            raise NoReplica
        depths = self.prefixes.depths(request.prefix)
        replica, reason = self._pick(request, candidates, depths)
        tokens = request.prefix.tokens + request.max_new_tokens
        self.loads.add(replica, tokens)
        self.prefixes.insert(request.prefix, replica)
        if request.session is not None:
            self._settle(request.session, replica, candidates)
        warm = request.prefix.tokens_of(depths.get(replica, 0))
        return Choice(replica_id=replica, reason=reason, warm_tokens=warm, tokens=tokens)

    def finish(self, choice: Choice) -> None:
        """Remove the request from the load."""
        self.loads.remove(choice.replica_id, choice.tokens)

    def forget(self, replica: UUID) -> None:
        """Forget a replica's prefixes: it stopped, or its engine restarted with an empty cache.

        Its sessions stay recorded; they have no effect while the replica is not a candidate.
        """
        self.prefixes.forget(replica)
        self.loads.forget(replica)

    def _pick(
        self, request: RoutingRequest, candidates: Sequence[UUID], depths: dict[UUID, int]
    ) -> tuple[UUID, Reason]:
        if len(candidates) == 1:
            return candidates[0], "only"
        open_to = self.loads.below_bound(candidates, request.prefix.tokens + request.max_new_tokens)
        if request.session is not None:
            placed = self._by_session(request.session, candidates, open_to)
            if placed is not None:
                return placed, "session"
        warm = {replica: depth for replica, depth in depths.items() if replica in open_to}
        best = max(warm.values(), default=0)
        if best > request.prefix.system_hashes:
            return min((r for r, depth in warm.items() if depth == best), key=self.loads.order), "prefix"
        # No replica is warm beyond a shared system prompt, and following that alone would overload one replica.
        return min(candidates, key=self.loads.order), "load"

    def _by_session(self, session: bytes, candidates: Sequence[UUID], open_to: set[UUID]) -> UUID | None:
        home = self.sessions.home(session)
        if home in candidates:
            return home if home in open_to else None
        return next((r for r in rendezvous(session, candidates, lambda r: r.bytes) if r in open_to), None)

    def _settle(self, session: bytes, replica: UUID, candidates: Sequence[UUID]) -> None:
        """Record a session's replica if it has none or the old one is gone. A busy moment does not move a session."""
        home = self.sessions.home(session)
        if home is None or home not in candidates:
            self.sessions.settle(session, replica)
