"""Hearth's own routing code in the simulation, with the simulation's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

import msgspec

from benchmarks.routing.simulator import Engine, Request
from benchmarks.routing.workload import hashes
from routing.exchange import Exchange
from routing.prefixes.prefix_hash import BYTES_PER_TOKEN, PrefixHashes
from routing.prefixes.warm_prefixes import ReplicaCache, WarmPrefixes
from routing.router import AnswerStart, Boot, Choice, Router, RoutingRequest
from routing.shared.state import SharedState, size

PREFIX_ENTRIES = 1 << 20
SESSION_ENTRIES = 1 << 14
#: How often hosts exchange messages.
EVERY_SECONDS = 0.1


class _SimulatedHost:
    """The processes of one host, all of which run."""

    def __init__(self, process: int, processes: int) -> None:
        self.process = process
        self.running = [True] * processes

    def exclusive(self) -> AbstractContextManager[bool]:
        """Exclude the others, which do nothing meanwhile."""
        return nullcontext(True)

    def look(self, processes: int) -> None:
        """See nothing new."""


def gateways(
    engines: Sequence[Engine], count: int, hosts: int, kind: type[Hearth], *, strict: bool = False
) -> list[Hearth]:
    """Return ``count`` gateway processes of a ``kind``, spread over ``hosts``.

    ``strict``: sessions stay at home, whatever that costs.
    """
    memories = [memoryview(bytearray(size(PREFIX_ENTRIES, SESSION_ENTRIES))) for _ in range(hosts)]
    found = []
    for number in range(count):
        process, host = divmod(number, hosts)
        processes = len(range(host, count, hosts))
        state = SharedState(memories[host], PREFIX_ENTRIES, SESSION_ENTRIES, _SimulatedHost(process, processes))
        found.append(kind(engines, state, strict=strict))
    if hosts > 1:
        _Channel([found[host::hosts] for host in range(hosts)])
    return found


class _Channel:
    """Between hosts: what the gateway does through Redis (``gateway.upstream.routing.exchange``)."""

    def __init__(self, hosts: Sequence[Sequence[Hearth]]) -> None:
        self._due = EVERY_SECONDS
        self._hosts: list[list[Exchange]] = []
        for processes in hosts:
            exchanges = []
            for hearth in processes:
                hearth.channel = self
                exchange = Exchange(hearth.router, clock=hearth.clock)
                hearth.router.on_used = exchange.used
                exchanges.append(exchange)
            self._hosts.append(exchanges)
        self._all = [hearth for processes in hosts for hearth in processes]

    def pass_on(self, now: float) -> None:
        """Exchange messages if it is time."""
        if now < self._due:
            return
        self._due = now + EVERY_SECONDS
        for hearth in self._all:
            hearth.now = now
        messages = [exchange.pack() for host in self._hosts for exchange in host]
        for host in self._hosts:
            for message in messages:
                for _ in host[0].apply(message):
                    pass


class Hearth:
    """One gateway process."""

    def __init__(self, engines: Sequence[Engine], state: SharedState, *, strict: bool) -> None:
        self.now = 0.0
        self._strict = strict
        #: To other hosts.
        self.channel: _Channel | None = None
        self._replicas = [UUID(int=number + 1) for number in range(len(engines))]
        self._numbers = {replica: number for number, replica in enumerate(self._replicas)}
        self._block_size = engines[0].scheduler.block_size
        self.router = self._router(engines, state)
        self._running: dict[int, tuple[Choice, AnswerStart | None]] = {}
        self._present = self._replicas
        self._boots = {replica: self._boot(engine) for replica, engine in zip(self._replicas, engines, strict=True)}
        self.router.follow(self._boots)

    def _router(self, engines: Sequence[Engine], state: SharedState) -> Router:
        return Router(state, clock=self.clock)

    def _boot(self, engine: Engine) -> Boot:
        """Return what an engine says of itself."""
        host = engine.scheduler.host
        return Boot(
            cache_tokens=(engine.scheduler.pool.total - 1) * self._block_size,
            host_cache_tokens=host.blocks * self._block_size if host is not None else None,
        )

    def clock(self) -> float:
        """Return the simulation's time."""
        return self.now

    def follow(self, replicas: Sequence[int], now: float) -> None:
        """Tell the router which replicas there are; one that is back has begun anew."""
        self.now = now
        present = [self._replicas[each] for each in replicas]
        for replica in set(present).difference(self._present):
            boot = self._boots[replica]
            self._boots[replica] = msgspec.structs.replace(boot, generation=boot.generation + 1)
        self._present = present
        self.router.follow({replica: self._boots[replica] for replica in present})

    def choose(self, request: Request, now: float) -> int | None:
        """Return the number of a replica."""
        return self.choose_replica(request, now)

    def choose_replica(self, request: Request, now: float, among: Sequence[UUID] | None = None) -> int:
        """Return the number of a replica, one of ``among`` if that is given, and count the request."""
        if self.channel is not None:
            self.channel.pass_on(now)
        self.now = now
        choice = self.router.choose(self._described(request), self._present, free=among)
        self._running[id(request)] = choice, None
        return self._numbers[choice.replica_id]

    def first_token(self, request: Request, now: float) -> None:
        """Tell the router."""
        self.now = now
        choice, _ = self._running[id(request)]
        self._running[id(request)] = choice, self.router.answered(choice, streamed=True)

    def ended(self, request: Request, now: float) -> None:
        """Tell the router, as the gateway does with the engine's usage."""
        self.now = now
        choice, start = self._running.pop(id(request))
        assert start is not None
        computed = request.turn.prompt_tokens - request.cached_tokens
        self.router.learn(
            choice,
            start,
            computed_tokens=computed,
            cached_tokens=request.cached_tokens,
            completion_tokens=request.turn.output_tokens,
        )
        self.router.finish(choice, answered=True)

    def _described(self, request: Request) -> RoutingRequest:
        """Return the request as a gateway describes it, with a link for each block of the prompt."""
        turn, size = request.turn, self._block_size
        links = hashes(turn.blocks[: turn.prompt_tokens // size])
        ends = tuple(BYTES_PER_TOKEN * size * (number + 1) for number in range(len(links)))
        return RoutingRequest(
            prefix=PrefixHashes(hashes=links, ends=ends, tokens=turn.prompt_tokens),
            session=request.conversation.session,
            strict=self._strict,
            max_new_tokens=turn.output_tokens,
            streamed=True,
        )


class HostEvicted(Hearth):
    """One that takes what the caches evict for lost."""

    def _boot(self, engine: Engine) -> Boot:
        return msgspec.structs.replace(super()._boot(engine), host_cache_tokens=None)


class HostCached(Hearth):
    """One that takes what is in host memory for cached."""

    def _boot(self, engine: Engine) -> Boot:
        boot = super()._boot(engine)
        return msgspec.structs.replace(boot, cache_tokens=boot.host_cache_tokens, host_cache_tokens=None)


class Exact(Hearth):
    """One that sees each engine's cache as it is at this moment, which is better than KV events can tell."""

    def _router(self, engines: Sequence[Engine], state: SharedState) -> Router:
        return _ExactRouter(engines, self._replicas, state, self.clock)


class _ExactRouter(Router):
    def __init__(
        self, engines: Sequence[Engine], replicas: Sequence[UUID], state: SharedState, clock: Callable[[], float]
    ) -> None:
        super().__init__(state, clock=clock)
        self._warm = _EngineCaches(engines, replicas, self)

    def waiting(self, replica: UUID) -> Iterator[PrefixHashes]:
        """Yield the prompts that run on a replica, or wait there."""
        for choice in self._replicas[replica].load.running:
            yield choice.prefix

    def replica_of(self, cache: ReplicaCache) -> UUID:
        """Return the replica that has this cache."""
        return next(replica for replica, known in self._replicas.items() if known.cache is cache)


class _EngineCaches(WarmPrefixes):
    """The links of a prompt are warm if an engine holds their blocks, or will when it has computed what it was sent."""

    def __init__(self, engines: Sequence[Engine], replicas: Sequence[UUID], router: _ExactRouter) -> None:
        super().__init__(router.state.prefixes)
        self._engines = dict(zip(replicas, engines, strict=True))
        self._router = router

    def depth(self, prefix: PrefixHashes, cache: ReplicaCache) -> int:
        """Return how many leading links of a prompt are in a replica's cache."""
        replica = self._router.replica_of(cache)
        held = len(self._engines[replica].scheduler.pool.match(prefix.hashes))
        return max([held, *(_common(prefix.hashes, other.hashes) for other in self._router.waiting(replica))])

    def reach(self, prefix: PrefixHashes, cache: ReplicaCache, depth: int) -> int:
        """Return how many are there or in host memory."""
        host = self._engines[self._router.replica_of(cache)].scheduler.host
        return depth if host is None else depth + host.match(prefix.hashes[depth:])


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return how many links two prompts share."""
    pairs = zip(one, other, strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
