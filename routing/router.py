"""Choose the replica for one request: the one where it costs everybody the fewest seconds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal
from uuid import UUID

import msgspec

from routing.errors import NoReplica
from routing.prefix_hash import PrefixHashes
from routing.replica_load import ReplicaLoad, typical_seconds_per_token
from routing.sessions import SessionMap, rendezvous
from routing.warm_prefixes import DEFAULT_ENTRIES, ReplicaCache, Use, WarmPrefixes

Reason = Literal["session", "prefix", "load", "only"]

#: Tokens in the cache of an engine that has not said how many it holds.
DEFAULT_CACHE_TOKENS = 500_000
#: Which share of a session's prompt its home is assumed to hold beyond what this process has sent there, if other
#: processes send requests too: most of a conversation's turns came through them. Tried out in simulation.
FROM_PEERS = 0.8
#: Costs closer than this are equal, seconds: a session's home wins then, or who has waited longest for a request.
EQUAL_SECONDS = 0.001


class RoutingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a request that routing uses. ``session`` is a tenant-scoped name, or None."""

    prefix: PrefixHashes
    session: bytes | None
    max_new_tokens: int
    streamed: bool


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica would cost a request, in seconds."""

    replica_id: UUID
    #: Estimated prompt tokens in its prefix cache; and the links of the prompt that this process has sent there.
    warm_tokens: int
    depth: int
    #: Work before it, and its own prompt.
    backlog: float
    prefill: float
    #: How long the requests that follow would wait for it, all together.
    displaced: float
    #: How much longer its answer takes because of the others that are written beside it.
    decode: float

    @property
    def cost(self) -> float:
        """Return what is compared."""
        return self.backlog + self.prefill + self.displaced + self.decode


class _Known:
    """What is known of one replica since it was first seen or last forgotten."""

    __slots__ = ("cache", "load", "turn")

    def __init__(self, cache: ReplicaCache) -> None:
        self.cache = cache
        self.load: ReplicaLoad[Choice] = ReplicaLoad()
        #: When it was last chosen, by a count of all choices.
        self.turn = 0


class Choice(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The replica for one request, and the reason."""

    replica_id: UUID
    reason: Reason
    #: Estimated prompt tokens in its prefix cache.
    warm_tokens: int
    #: Prompt tokens and most new tokens.
    tokens: int
    #: Expected seconds of its own prompt.
    prefill: float
    prefix: PrefixHashes
    #: How much of the prompt was warm, in links, when it was sent; and its use of the cache.
    depth: int
    use: Use
    sent_at: float
    #: What was known of the replica: still this when the replica has been forgotten.
    known: _Known


class AnswerStart(msgspec.Struct, frozen=True, kw_only=True):
    """When an answer began, or came whole; after how many seconds of prefill; and how many requests ran then."""

    at: float
    prefill_seconds: float
    batch: int
    streamed: bool


class Router:
    """Warm prefixes, sessions and loads known to one process. Not thread-safe: lives on one event loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        table_entries: int = DEFAULT_ENTRIES,
        session_capacity: int = 100_000,
    ) -> None:
        """``clock`` returns seconds."""
        self.sessions: SessionMap[UUID] = SessionMap(session_capacity)
        self._clock = clock
        self._warm = WarmPrefixes(table_entries)
        self._replicas: dict[UUID, _Known] = {}
        #: Other processes send requests to the same replicas, unknown to this one.
        self.has_peers = False
        self._numbers = itertools.count(1)
        self._turns = itertools.count(1)

    def choose(self, request: RoutingRequest, candidates: Sequence[UUID]) -> Choice:
        """Choose among ``candidates`` and count the request as load. Raises NoReplica if there are none.

        Call :meth:`finish` for every choice, however the request ends.
        """
        if not candidates:
            raise NoReplica
        now = self._clock()
        home = self._home(request.session, candidates) if request.session is not None else None
        chosen, reason = self._pick(self.costs(request, candidates, now, home), home)
        prefix = request.prefix
        known = self._known(chosen.replica_id)
        choice = Choice(
            replica_id=chosen.replica_id,
            reason=reason,
            warm_tokens=chosen.warm_tokens,
            tokens=prefix.tokens + request.max_new_tokens,
            prefill=chosen.prefill,
            prefix=prefix,
            depth=chosen.depth,
            use=self._warm.use(prefix, known.cache, _ticks(now)),
            sent_at=now,
            known=known,
        )
        known.turn = next(self._turns)
        known.load.send(choice, chosen.prefill, now, streamed=request.streamed)
        if request.session is not None and self.sessions.home(request.session) not in candidates:
            self.sessions.settle(request.session, chosen.replica_id)
        return choice

    def costs(
        self, request: RoutingRequest, candidates: Sequence[UUID], now: float, home: UUID | None = None
    ) -> list[Candidate]:
        """Return what each candidate would cost, in their order. ``home``: the replica of the request's session."""
        prefix = request.prefix
        replicas = [self._known(each) for each in candidates]
        typical = typical_seconds_per_token((replica.load for replica in replicas), now)
        new_tokens = min(request.max_new_tokens, max(each.load.decode_speed.mean_tokens for each in replicas))
        found = []
        for replica_id, replica in zip(candidates, replicas, strict=True):
            load = replica.load
            depth = self._warm.depth(prefix, replica.cache)
            warm = prefix.tokens_of(depth)
            if replica_id == home and self.has_peers:
                warm += int((prefix.tokens - warm) * FROM_PEERS)
            prefill = (prefix.tokens - warm) * load.seconds_per_token(typical, now)
            found.append(
                Candidate(
                    replica_id=replica_id,
                    warm_tokens=warm,
                    depth=depth,
                    backlog=load.backlog(now),
                    prefill=prefill,
                    displaced=load.displaced(prefill, now),
                    decode=len(load.running) * load.decode_speed.seconds_per_neighbour * new_tokens,
                )
            )
        return found

    def answered(self, choice: Choice, *, streamed: bool) -> AnswerStart:
        """Record that an answer began, or came whole; :meth:`learn` needs what this returns."""
        now = self._clock()
        known = choice.known
        known.cache.add(choice.use.new_tokens, choice.use.stamp)
        prefill_seconds = known.load.answered(choice, choice.sent_at, now)
        return AnswerStart(at=now, prefill_seconds=prefill_seconds, batch=len(known.load.running), streamed=streamed)

    def learn(self, choice: Choice, start: AnswerStart, *, computed_tokens: int, completion_tokens: int) -> None:
        """Learn from a complete answer. ``computed_tokens``: of the prompt, as the engine reports them."""
        known, now = choice.known, self._clock()
        known.cache.add(completion_tokens + computed_tokens - choice.use.new_tokens, choice.use.stamp)
        if start.streamed:
            batch = (start.batch + len(known.load.running)) / 2
            known.load.decode_speed.learn(completion_tokens, now - start.at, batch)
        if start.streamed or completion_tokens <= 1:
            known.load.learn(start.prefill_seconds, max(1, computed_tokens), now)

    def finish(self, choice: Choice, *, answered: bool) -> None:
        """Remove the request from the load, once. Without an answer nothing of it counts as computed."""
        known = choice.known
        if not answered:
            known.load.withdraw(choice, choice.prefill)
            self._warm.drop(choice.prefix, choice.depth, known.cache)
            return
        known.load.end(choice)
        now = _ticks(self._clock())
        if choice.use.stamp < known.cache.present:  # engines release its prompt now
            again = self._warm.use(choice.prefix, known.cache, now)
            known.cache.add(again.new_tokens, again.stamp)

    def tokens_in_flight(self, replica_id: UUID) -> int:
        """Return prompt and most new tokens of the requests that run on a replica."""
        found = self._replicas.get(replica_id)
        return sum(choice.tokens for choice in found.load.running) if found else 0

    def retain(self, replica_ids: Collection[UUID]) -> None:
        """Forget every other replica."""
        for gone in self._replicas.keys() - set(replica_ids):
            self.forget(gone)

    def forget(self, replica_id: UUID) -> None:
        """Forget a replica: it is gone, or its engine restarted with an empty cache.

        Its sessions stay recorded; they have no effect while the replica is not a candidate.
        """
        self._replicas.pop(replica_id, None)

    def resize(self, replica_id: UUID, cache_tokens: int) -> None:
        """Record how many tokens a replica's cache holds. It counts as empty from now on."""
        known = self._known(replica_id)
        if known.cache.capacity != cache_tokens:
            known.cache = ReplicaCache(next(self._numbers), cache_tokens)

    def _known(self, replica_id: UUID) -> _Known:
        found = self._replicas.get(replica_id)
        if found is None:
            found = self._replicas[replica_id] = _Known(ReplicaCache(next(self._numbers), DEFAULT_CACHE_TOKENS))
        return found

    def _pick(self, costs: Sequence[Candidate], home: UUID | None) -> tuple[Candidate, Reason]:
        if len(costs) == 1:
            return costs[0], "only"
        least = min(each.cost for each in costs)
        equal = [each for each in costs if each.cost - least < EQUAL_SECONDS]
        for each in equal:
            if each.replica_id == home:
                return each, "session"
        chosen = min(equal, key=lambda each: self._known(each.replica_id).turn)
        second = min((each for each in costs if each is not chosen), key=lambda each: each.cost)
        by_prefix = second.prefill + second.displaced - chosen.prefill - chosen.displaced
        by_load = second.backlog + second.decode - chosen.backlog - chosen.decode
        return chosen, "prefix" if chosen.warm_tokens and by_prefix > by_load else "load"

    def _home(self, session: bytes, candidates: Sequence[UUID]) -> UUID:
        """Return a session's home. Every process has the same for a new session. Only the end of its home moves one."""
        known = self.sessions.home(session)
        if known is not None and known in candidates:
            return known
        home = rendezvous(session, candidates, lambda each: each.bytes)[0]
        if self.has_peers:
            self.sessions.settle(session, home)
        return home


def _ticks(seconds: float) -> int:
    """Return a time as the table of warm prefixes counts it: 1 to 2**40 in 34 years."""
    return int(seconds * 1000) + 1
