"""Hearth's own routing code in the simulation, with the simulation's time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

from benchmarks.routing.simulator import Engine, Request
from benchmarks.routing.workload import hashes
from routing.exchange import Exchange
from routing.prefix_hash import BYTES_PER_TOKEN, PrefixHashes
from routing.router import AnswerStart, Boot, Choice, Router, RoutingRequest
from routing.shared_state import SharedState, size

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


def gateways(engines: Sequence[Engine], count: int, hosts: int, *, strict: bool = False) -> list[Hearth]:
    """Return so many gateway processes, spread over hosts. ``strict``: sessions stay at home, whatever that costs."""
    memories = [memoryview(bytearray(size(PREFIX_ENTRIES, SESSION_ENTRIES))) for _ in range(hosts)]
    found = []
    for number in range(count):
        process, host = divmod(number, hosts)
        processes = len(range(host, count, hosts))
        state = SharedState(memories[host], PREFIX_ENTRIES, SESSION_ENTRIES, _SimulatedHost(process, processes))
        found.append(Hearth(engines, state, strict=strict))
    if hosts > 1:
        _Channel([found[host::hosts] for host in range(hosts)])
    return found


class _Channel:
    """Between hosts: what the gateway does through Redis (``gateway.control_plane.routing_exchange``)."""

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
        self.router = Router(state, clock=self.clock)
        self._running: dict[int, tuple[Choice, AnswerStart | None]] = {}
        self.router.follow(
            {
                replica: Boot(cache_tokens=(engine.scheduler.pool.total - 1) * self._block_size)
                for replica, engine in zip(self._replicas, engines, strict=True)
            }
        )

    def clock(self) -> float:
        """Return the simulation's time."""
        return self.now

    def choose(self, request: Request, now: float) -> int | None:
        """Return the number of a replica."""
        return self.choose_replica(request, now)

    def choose_replica(self, request: Request, now: float, among: Sequence[UUID] | None = None) -> int:
        """Return the number of a replica, one of ``among`` if that is given, and count the request."""
        if self.channel is not None:
            self.channel.pass_on(now)
        self.now = now
        choice = self.router.choose(self._described(request), self._replicas, free=among)
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
