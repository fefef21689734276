"""Choose the replica for one request: the one where it costs everybody the fewest seconds."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from math import exp
from typing import Literal
from uuid import UUID

import msgspec

from catalogue.routing_policy import DEFAULT, EVEN, EXPECTED_SECONDS, TERMS, RoutingPolicy, Weights
from routing.errors import NoReplica
from routing.prefixes.drift import Drift
from routing.prefixes.prefix_hash import PrefixHashes
from routing.prefixes.warm_prefixes import ReplicaCache, Use, WarmPrefixes
from routing.replicas.load import AVERAGE_SECONDS, LoadRow, ReplicaLoad, typical_seconds_per_token
from routing.replicas.reload_speed import ReloadSpeed
from routing.sessions import SessionMap, mark, rendezvous
from routing.shared.counters import CounterTable
from routing.shared.state import ReplicaMemory, SharedState, private

Reason = Literal["session", "prefix", "load", "only"]

#: Tokens in the cache of an engine that has not said how many it holds.
DEFAULT_CACHE_TOKENS = 500_000
#: Which share of a session's prompt its home is assumed to hold beyond what this process has sent there, if other
#: processes send requests too: most of a conversation's turns came through them. Tried out in simulation.
FROM_PEERS = 0.8
#: Entries of the default tables: 32 MiB and 1 MiB.
DEFAULT_PREFIXES = 1 << 22
DEFAULT_SESSIONS = 1 << 17
LOOK_SECONDS = 1.0
#: A replica that is newer than the others is expected to get as many requests as they do. After this many seconds a
#: third of that expectation is left. Chosen by simulation.
NEW_SECONDS = 60.0
#: Where no model says how long a prompt may be.
MOST_PROMPT_TOKENS = 1 << 31
#: How many prompts of running requests one choice counts as used, at most, so that no choice takes long.
MOST_KEPT = 2
#: The tokens that a request needs are averaged over about this many that ended.
RECENT_REQUESTS = 32
#: An answer shows an eviction only if more than this share of the expected tokens was not cached: tokens are estimated
#: from bytes, and for a part of a prompt such an estimate may be wrong by nearly as much.
MISSING_SHARE = 0.5
#: And only if more than this many tokens were not cached.
LEAST_CORRECTED_TOKENS = 512
#: Costs closer than this are equal, seconds: a session's home wins then, or who has waited longest for a request.
EQUAL_SECONDS = 0.001


class RoutingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a request that routing uses. ``session`` is a tenant-scoped name, or None."""

    prefix: PrefixHashes
    #: Whose request it is; the same for all where tenants share a cache.
    tenant: bytes = b""
    session: bytes | None
    #: A session that was not seen for longer has no home.
    session_ttl_seconds: int = 3600
    #: The session stays at its home, whatever that costs.
    strict: bool = False
    #: What names the conversation, from its first request on, for comparisons of policies.
    conversation: bytes = b""
    #: The model's context. A prompt's tokens are estimated from its bytes, and images have many bytes and few tokens.
    most_prompt_tokens: int = MOST_PROMPT_TOKENS
    max_new_tokens: int
    streamed: bool


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica would cost a request, in seconds."""

    replica_id: UUID
    #: Estimated prompt tokens that it holds; and the links of the prompt that are known to have been sent there.
    warm_tokens: int
    depth: int
    #: Work before it, and its own prompt.
    backlog: float
    prefill: float
    #: Copying what is in host memory into its cache.
    reload: float = 0.0
    #: How long the requests that follow would wait for it, all together.
    displaced: float
    #: How much longer its answer takes because of the others that are written beside it.
    decode: float
    #: Computing the session's prompt elsewhere in the next request, because the replica leaves.
    leaving: float = 0.0
    #: What the weights of the deployment's policy add to the sum of these terms, or take off it.
    weighting: float = 0.0
    #: Those of the warm tokens that are in host memory.
    host_tokens: int = 0
    #: How many requests run on it.
    requests: int = 0
    #: What is believed of its cache was wrong too often, so nothing counts as warm there.
    drifts: bool = False
    #: It had no room for a request that waited, so it was not considered.
    full: bool = False

    @property
    def cost(self) -> float:
        """Return what is compared."""
        known = self.backlog + self.prefill + self.reload + self.displaced + self.decode + self.leaving
        return known + self.weighting


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a replica's engine, with an empty cache; a later one has another ``generation``."""

    generation: int = 0
    #: How many tokens the cache holds, or None if the engine has not said.
    cache_tokens: int | None = None
    #: How many tokens it keeps in host memory, or None if it has not said, or keeps none.
    host_cache_tokens: int | None = None


class _Known:
    """What is known of one boot of a replica."""

    __slots__ = (
        "boot", "cache", "contradicted", "drift", "in_use", "load", "mark", "memory", "met_at", "reload", "tokens",
        "tokens_each",
    )  # fmt: skip

    def __init__(self, replica_id: UUID, boot: Boot, memory: ReplicaMemory, met_at: float) -> None:
        self.boot = boot
        self.met_at = met_at
        self.memory = memory
        self.cache = ReplicaCache(
            boot.cache_tokens or DEFAULT_CACHE_TOKENS, memory, host_capacity=boot.host_cache_tokens or 0
        )
        self.reload = ReloadSpeed()
        self.load: ReplicaLoad[Choice] = ReplicaLoad(memory)
        self.mark = mark(replica_id.bytes)
        #: Tokens that this process's requests need in the cache: those that run, and about each of those that ended.
        self.tokens = 0
        self.tokens_each = 0.0
        #: The requests that this process has sent and not ended, and when their prompts were last counted as used.
        self.in_use: dict[Choice, int] = {}
        #: The first link of the last prompt whose answer showed that it was not held, until another shows the contrary.
        self.contradicted: bytes | None = None
        self.drift = Drift()

    def learn_reloaded(self, seconds: float, computed_tokens: int, reloaded_tokens: int, now: float) -> None:
        """Learn from the time of a prompt, part of which was reloaded.

        What it took beyond what was expected, or less, is due to computing or copying: more of it to the one of which
        less is known, in seconds.
        """
        rate = self.load.seconds_per_token(now)
        computing, copying = computed_tokens * rate, reloaded_tokens * self.reload.seconds_per_token(now)
        unsure = computing**2 * self.load.estimate(now).unsure
        share = unsure / (unsure + copying**2 * self.reload.unsure(now))
        surprise = seconds - computing - copying
        self.load.learn(max(0.0, computing + share * surprise), computed_tokens, now)
        self.reload.learn(copying + (1 - share) * surprise, reloaded_tokens, now, most=reloaded_tokens * rate)

    def newness(self, now: float, oldest: float) -> float:
        """Return 1 for a replica that was met now while others were long known, and less the longer it is known.

        ``oldest``: when the first of its fellows was met. Replicas that were met together are not new.
        """
        return exp((self.met_at - now) / NEW_SECONDS) * (1 - exp((oldest - self.met_at) / AVERAGE_SECONDS))


class Choice(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The replica for one request, and the reason."""

    replica_id: UUID
    reason: Reason
    #: Estimated prompt tokens that it holds, and those of them in host memory.
    warm_tokens: int
    host_tokens: int = 0
    #: The warm ones that are known to have been sent there.
    held_tokens: int
    #: Prompt tokens and most new tokens.
    tokens: int
    #: Those that it is expected to add to the cache.
    added_tokens: int = 0
    #: Expected seconds of its own prompt.
    prefill: float
    #: Nothing was before it when it was sent.
    was_first: bool = False
    prefix: PrefixHashes
    tenant: bytes = b""
    session: bytes | None = None
    #: How much of the prompt was warm, host memory included, in links, when it was sent; and its use of the cache.
    depth: int
    use: Use
    sent_at: float
    #: What was known of the replica: still this when the replica has been forgotten.
    known: _Known
    #: What each replica would have cost, and the home of the request's session.
    candidates: Sequence[Candidate]
    home: UUID | None
    #: The policy that decided.
    policy: RoutingPolicy


class AnswerStart(msgspec.Struct, frozen=True, kw_only=True):
    """When an answer began, or came whole; after how many seconds of prefill; and how many requests ran then."""

    at: float
    prefill_seconds: float
    batch: float
    streamed: bool
    #: It was streamed, and from when it was sent until it began its replica had nothing else to compute or to copy.
    alone: bool = False


class Router:
    """Warm prefixes, sessions and loads as the processes of a host know them.

    Not thread-safe: lives on one event loop.
    """

    def __init__(self, state: SharedState | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``state``: by default one of this process alone. ``clock`` returns seconds, the same in all processes."""
        self.state = state or private(DEFAULT_PREFIXES, DEFAULT_SESSIONS)
        self.sessions = SessionMap(self.state.sessions)
        #: Of the tenants that wait for room (:mod:`routing.fair_queue`).
        self.counters = CounterTable(self.state, clock)
        self._clock = clock
        self._warm = WarmPrefixes(self.state.prefixes)
        self._replicas: dict[UUID, _Known] = {}
        #: Replicas that serve until others are ready in their place.
        self._leaving: frozenset[UUID] = frozenset()
        self._looked_at = 0.0
        #: Processes on other hosts send requests to the same replicas, unknown to this one.
        self.has_peers = False
        #: Gets each prompt that was used, for the other hosts, and how many tokens more than were new are in the cache,
        #: and in host memory: when its answer begins, and when it is complete.
        self.on_used: Callable[[Choice, int, int], None] | None = None

    def choose(
        self,
        request: RoutingRequest,
        candidates: Sequence[UUID],
        *,
        free: Collection[UUID] | None = None,
        policy: RoutingPolicy = DEFAULT,
    ) -> Choice:
        """Choose among ``candidates`` and count the request as load. Raises NoReplica if there are none.

        ``free``: the candidates with room, of which one is chosen; a strict session's home is chosen without room, too,
        whatever the ``policy``.
        Call :meth:`finish` for every choice, however the request ends.
        """
        if not candidates:
            raise NoReplica
        now = self._clock()
        self._look(now)
        home, settled = self._home(request, candidates, now)
        costs = self.costs(request, candidates, now, home, policy.weights)
        strict = request.strict and settled
        open_to_it = costs
        if free is not None and not strict:
            costs = [each if each.replica_id in free else msgspec.structs.replace(each, full=True) for each in costs]
            open_to_it = [each for each in costs if not each.full]
        chosen, reason = self._pick(open_to_it, home, policy, strict=strict)
        prefix = request.prefix
        known = self._known(chosen.replica_id)
        choice = Choice(
            replica_id=chosen.replica_id,
            reason=reason,
            warm_tokens=chosen.warm_tokens,
            host_tokens=chosen.host_tokens,
            held_tokens=prefix.tokens_of(chosen.depth),
            tokens=prefix.tokens + request.max_new_tokens,
            added_tokens=min(prefix.tokens - chosen.warm_tokens + chosen.host_tokens, request.most_prompt_tokens)
            + min(request.max_new_tokens, int(known.load.mean_tokens)),
            prefill=chosen.prefill,
            was_first=chosen.backlog == 0,
            prefix=prefix,
            tenant=request.tenant,
            session=request.session,
            depth=chosen.depth,
            use=self._warm.use(prefix, known.cache, _ticks(now)),
            sent_at=now,
            known=known,
            candidates=costs,
            home=home,
            policy=policy,
        )
        known.load.send(choice, chosen.prefill, now, streamed=request.streamed)
        known.tokens += choice.added_tokens
        self._keep_in_use(known, now)
        known.in_use[choice] = choice.use.stamp
        if request.session is not None and not settled and chosen.replica_id not in self._leavers(candidates):
            self.sessions.settle(request.session, known.mark, now)
        return choice

    def costs(
        self,
        request: RoutingRequest,
        candidates: Sequence[UUID],
        now: float,
        home: UUID | None = None,
        weights: Weights = EVEN,
    ) -> list[Candidate]:
        """Return what each candidate would cost, in their order. ``home``: the replica of the request's session."""
        prefix = request.prefix
        replicas = [self._known(each) for each in candidates]
        loads = [replica.load.estimate(now) for replica in replicas]
        typical = typical_seconds_per_token(loads)
        usual_arrivals = sum(load.arrivals for load in loads) / len(loads)
        oldest = min(replica.met_at for replica in replicas)
        new_tokens = min(request.max_new_tokens, max(load.mean_tokens for load in loads))
        rates = [load.seconds_per_token(typical) for load in loads]
        leavers = self._leavers(candidates) if request.session is not None else frozenset()
        later = (prefix.tokens + new_tokens) * max(rates) if leavers else 0.0
        found = []
        for replica_id, replica, load, rate in zip(candidates, replicas, loads, rates, strict=True):
            depth = self._warm.depth(prefix, replica.cache)
            drifts = replica.drift.concerns(request.tenant)
            reach = self._warm.reach(prefix, replica.cache, depth)
            warm = 0 if drifts else prefix.tokens_of(reach)
            in_host = warm - prefix.tokens_of(depth) if warm and reach > depth else 0
            if replica_id == home and self.has_peers and not drifts:
                warm += int((prefix.tokens - warm) * FROM_PEERS)
            prefill = min(prefix.tokens - warm, request.most_prompt_tokens) * rate
            leaving = later if replica_id in leavers else 0.0
            found.append(
                Candidate(
                    replica_id=replica_id,
                    warm_tokens=warm,
                    depth=reach,
                    backlog=load.backlog,
                    prefill=prefill,
                    # An engine to which copies seem dearer than computing costs no more than one that must compute:
                    # otherwise it would get no request that shows the contrary.
                    reload=min(in_host, request.most_prompt_tokens) * min(replica.reload.seconds_per_token(now), rate)
                    if in_host
                    else 0.0,
                    displaced=load.displaced(
                        prefill + leaving, usual_arrivals=usual_arrivals, newness=replica.newness(now, oldest)
                    ),
                    decode=load.requests * load.seconds_per_neighbour * new_tokens,
                    leaving=leaving,
                    host_tokens=in_host,
                    requests=int(load.requests),
                    drifts=drifts,
                )
            )
        return found if weights == EVEN else [_weighted(each, weights) for each in found]

    def has_room(self, replica_id: UUID, max_requests: int | None) -> bool:
        """Return whether a replica would soon begin with one more request. ``max_requests``: that it runs at once.

        Other processes tell how many requests they run; those need as many tokens of the cache as this process's did.
        """
        now = self._clock()
        self._look(now)  # a process that has ended runs nothing any more
        known = self._known(replica_id)
        requests, own = known.load.requests(now), len(known.load.running)
        if max_requests is not None and requests >= max_requests:
            return False
        tokens = known.tokens + max(0.0, requests - own) * known.tokens_each
        if requests and known.boot.cache_tokens is not None and tokens >= known.boot.cache_tokens:
            return False
        return not known.load.is_behind(now)

    def answered(self, choice: Choice, *, streamed: bool) -> AnswerStart:
        """Record that an answer began, or came whole; :meth:`learn` needs what this returns."""
        now = self._clock()
        known = choice.known
        known.cache.hold(choice.use)
        prefill_seconds = known.load.answered(choice, choice.sent_at, now)
        if self.on_used is not None:
            self.on_used(choice, 0, 0)
        return AnswerStart(
            at=now,
            prefill_seconds=prefill_seconds,
            batch=known.load.requests(now),
            streamed=streamed,
            alone=streamed
            and choice.was_first
            and known.load.last_sent_at <= choice.sent_at
            and prefill_seconds >= now - choice.sent_at,
        )

    def learn(
        self,
        choice: Choice,
        start: AnswerStart,
        *,
        computed_tokens: int,
        cached_tokens: int | None,
        completion_tokens: int,
    ) -> None:
        """Learn from a complete answer.

        ``computed_tokens`` and ``cached_tokens``: of the prompt, as the engine reports them; None if it may not have
        used what it holds.
        """
        known, now = choice.known, self._clock()
        reloaded = in_host = 0
        if cached_tokens is not None:
            total = computed_tokens + cached_tokens
            expected, expected_reload = (
                tokens * total // max(1, choice.prefix.tokens) for tokens in (choice.held_tokens, choice.host_tokens)
            )
            reloaded = max(0, min(expected_reload, cached_tokens - (expected - expected_reload)))
            if expected - cached_tokens > max(LEAST_CORRECTED_TOKENS, expected * MISSING_SHARE):
                self._correct(choice)
            elif expected > LEAST_CORRECTED_TOKENS:
                known.contradicted = None
            known.drift.compare(choice.tenant, expected, cached_tokens)
        more = completion_tokens + computed_tokens + reloaded - choice.use.new_tokens
        known.cache.add(more, choice.use.stamp)
        if cached_tokens is not None:
            in_host = known.cache.scale(choice.use, (computed_tokens + cached_tokens) / max(1, choice.prefix.tokens))
        if self.on_used is not None:
            self.on_used(choice, more, in_host)
        if start.streamed:
            batch = (start.batch + known.load.requests(now)) / 2
            known.load.learn_decoding(completion_tokens, now - start.at, batch)
        if not reloaded and (start.streamed or completion_tokens <= 1):
            known.load.learn(start.prefill_seconds, max(1, computed_tokens), now)
        elif reloaded and start.alone:
            known.learn_reloaded(start.prefill_seconds, computed_tokens, reloaded, now)

    def finish(self, choice: Choice, *, answered: bool) -> None:
        """Remove the request from the load, once. Without an answer nothing of it counts as computed."""
        known, now = choice.known, self._clock()
        known.tokens -= choice.added_tokens
        known.tokens_each += (choice.added_tokens - known.tokens_each) / RECENT_REQUESTS
        used_at = known.in_use.pop(choice, choice.use.stamp)
        if not answered:
            known.load.withdraw(choice, choice.prefill, now)
            self._warm.drop(choice.prefix, choice.depth, known.cache, choice.use, used_at)
            return
        known.load.end(choice, now)
        if choice.use.stamp < known.cache.present:  # engines release its prompt now
            again = self._warm.use(choice.prefix, known.cache, _ticks(now))
            known.cache.hold(again)

    def tokens_in_flight(self, replica_id: UUID) -> int:
        """Return prompt and most new tokens of the requests that run on a replica."""
        found = self._replicas.get(replica_id)
        return sum(choice.tokens for choice in found.load.running) if found else 0

    @property
    def drifting(self) -> int:
        """Return of how many replicas the view is so wrong that nothing is routed by it, if only for one tenant."""
        return sum(known.drift.lasts for known in self._replicas.values())

    def follow(self, boots: Mapping[UUID, Boot], leaving: frozenset[UUID] = frozenset()) -> None:
        """Record which replicas there are, and forget every other one and every other boot of an engine.

        Sessions of a forgotten replica stay recorded; they have no effect while it is not a candidate. ``leaving``
        ones serve until others are ready in their place: no session is at home there while another replica stays.
        """
        self._leaving = leaving
        for replica_id, known in list(self._replicas.items()):
            if boots.get(replica_id) != known.boot:
                self._forget(replica_id)
        for replica_id, boot in boots.items():
            if replica_id not in self._replicas:
                self._meet(replica_id, boot)

    def rows(self) -> dict[bytes, LoadRow]:
        """Return this process's part of each replica's load, by the key of the replica's places."""
        now = self._clock()
        return {known.memory.key: known.load.row(now) for known in self._replicas.values()}

    def follow_remote(self, process: int, told: Mapping[bytes, LoadRow], work: Mapping[bytes, float]) -> None:
        """Record the message of a process on another host; see :meth:`.ReplicaLoad.follow_remote`."""
        now = self._clock()
        for known in self._replicas.values():
            if known.memory.shared and known.memory.key in told:
                known.load.follow_remote(process, told[known.memory.key], work[known.memory.key], now)

    def used_elsewhere(self, key: bytes, prefix: PrefixHashes, more_tokens: int, more_in_host: int, at: float) -> None:
        """Record that a replica, by the key of its places, used a prompt that another host sent it; see on_used."""
        for known in self._replicas.values():
            if known.memory.key == key:
                use = self._warm.use(prefix, known.cache, _ticks(at))
                known.cache.hold(use)
                known.cache.add(more_tokens, use.stamp)
                known.cache.add_in_host(more_in_host, use.stamp)

    def _correct(self, choice: Choice) -> None:
        """Believe that a prompt was not held; with a second one of another beginning, that its age is evicted.

        One alone may be a client's doing: fields that change a prompt's beginning need not be among its links.
        """
        known, root = choice.known, choice.prefix.hashes[0]
        if known.contradicted not in (None, root):
            known.cache.correct(choice.use)
        known.contradicted = root

    def _keep_in_use(self, known: _Known, now: float) -> None:
        """Count prompts of running requests as used before they seem evicted: an engine holds them to the end."""
        aging = known.cache.aging
        for _ in range(min(MOST_KEPT, len(known.in_use))):
            choice, used_at = next(iter(known.in_use.items()))
            if used_at >= aging:
                return
            use = self._warm.use(choice.prefix, known.cache, _ticks(now))
            known.cache.hold(use)
            del known.in_use[choice]
            known.in_use[choice] = use.stamp

    def _forget(self, replica_id: UUID) -> None:
        self._replicas.pop(replica_id).load.detach()

    def _look(self, now: float) -> None:
        """See which other processes run, and keep the places of the replicas, each second."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        self.state.look(now)
        for replica_id, known in list(self._replicas.items()):
            kept = self.state.keep(known.memory, now)
            if kept is not known.memory:
                self._forget(replica_id)
                self._replicas[replica_id] = _Known(replica_id, known.boot, kept, known.met_at)

    def _known(self, replica_id: UUID) -> _Known:
        return self._replicas.get(replica_id) or self._meet(replica_id, Boot())

    def _meet(self, replica_id: UUID, boot: Boot) -> _Known:
        name = b"%b %d %d" % (replica_id.bytes, boot.generation, boot.cache_tokens or 0)
        if boot.host_cache_tokens:
            name += b" %d" % boot.host_cache_tokens
        key, now = hashlib.blake2b(name, digest_size=16).digest(), self._clock()
        met = self._replicas[replica_id] = _Known(replica_id, boot, self.state.place(key, now), now)
        return met

    def _pick(
        self, costs: Sequence[Candidate], home: UUID | None, policy: RoutingPolicy, *, strict: bool
    ) -> tuple[Candidate, Reason]:
        if len(costs) == 1:
            return costs[0], "only"
        if strict or policy.name == "session":
            for each in costs:
                if each.replica_id == home:
                    return each, "session"
        if policy.name != EXPECTED_SECONDS:
            least_requests = min(each.requests for each in costs)
            in_turn = policy.name == "round-robin"
            return self._longest_idle([each for each in costs if in_turn or each.requests == least_requests]), "load"
        least = min(each.cost for each in costs)
        equal = [each for each in costs if each.cost - least < EQUAL_SECONDS]
        for each in equal:
            if each.replica_id == home:
                return each, "session"
        chosen = self._longest_idle(equal)
        second = min((each for each in costs if each is not chosen), key=lambda each: each.cost)
        weights = policy.weights
        by_prefix = weights.prefill * (second.prefill - chosen.prefill)
        by_prefix += weights.reload * (second.reload - chosen.reload)
        by_prefix += weights.displaced * (second.displaced - chosen.displaced)
        by_load = weights.backlog * (second.backlog - chosen.backlog) + weights.decode * (second.decode - chosen.decode)
        return chosen, "prefix" if chosen.warm_tokens and by_prefix > by_load else "load"

    def _longest_idle(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the one that has waited longest for a request."""
        return min(candidates, key=lambda each: self._known(each.replica_id).load.last_sent_at)

    def _home(self, request: RoutingRequest, candidates: Sequence[UUID], now: float) -> tuple[UUID | None, bool]:
        """Return the home of a request's session, and whether the session is settled there.

        Every host has the same for a new session. One moves only when its home ends or leaves.
        """
        session = request.session
        if session is None:
            return None, False
        leavers = self._leavers(candidates)
        staying = [each for each in candidates if each not in leavers] if leavers else candidates
        found = self.sessions.home(session, now, request.session_ttl_seconds)
        if found is not None:
            for each in staying:
                if self._known(each).mark == found:
                    return each, True
        home = rendezvous(session, staying, lambda each: each.bytes)[0]
        if self.has_peers:
            self.sessions.settle(session, self._known(home).mark, now)
        return home, self.has_peers

    def _leavers(self, candidates: Sequence[UUID]) -> frozenset[UUID]:
        """Return the candidates that leave; none if all of them do."""
        if not self._leaving:
            return self._leaving
        leavers = self._leaving.intersection(candidates)
        return leavers if len(leavers) < len(candidates) else frozenset()


def _weighted(candidate: Candidate, weights: Weights) -> Candidate:
    more = sum((getattr(weights, term) - 1) * getattr(candidate, term) for term in TERMS)
    return msgspec.structs.replace(candidate, weighting=more)


def _ticks(seconds: float) -> int:
    """Return a time as the table of warm prefixes counts it: 1 to 2**40 in 34 years."""
    return int(seconds * 1000) + 1
