"""Hearth's own routing code behind its own fair queue, as gateways have them (``gateway.upstream.queue.turns``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from benchmarks.routing.hearth_policy import Hearth
from benchmarks.routing.simulator import MAX_SEQUENCES, Engine, Request
from routing.fair_queue import OUTPUT_WEIGHT, FairQueue, Ticket
from routing.shared.counters import CounterTable
from routing.shared.state import SharedState


class FairHearth(Hearth):
    """One gateway process."""

    #: False lets each process count for itself, and order only what waits in it.
    shared = True

    def __init__(self, engines: Sequence[Engine], state: SharedState, *, strict: bool = False) -> None:
        super().__init__(engines, state, strict=strict)
        self._queue: FairQueue[Request] = FairQueue("", self.router.counters if self.shared else None)
        #: Of requests that waited, and the prompt tokens that they were charged for.
        self._charged: dict[int, tuple[Ticket[Request], int]] = {}

    def choose(self, request: Request, now: float) -> int | None:
        """Return the number of a replica, or None if the request waits for one with room."""
        self.now = now
        if not self._queue and not self._queue.others_wait() and self._with_room():
            return self.choose_replica(request, now)
        self._queue.add(request, UUID(int=request.conversation.tenant))
        return None

    def turns(self, now: float) -> Iterator[tuple[Request, int]]:
        """Yield requests that need wait no longer, and their replicas."""
        self.now = now
        while ticket := self._queue.first():
            free = self._with_room()
            if not self._queue.may_serve(ticket, room=bool(free)):
                break
            request = ticket.item
            replica = self.choose_replica(request, now, free)
            choice, _ = self._running[id(request)]
            expected = choice.prefix.tokens - choice.warm_tokens
            self._queue.take(ticket, expected)
            self._charged[id(request)] = ticket, expected
            yield request, replica
        self._queue.post(ticket)

    def ended(self, request: Request, now: float) -> None:
        """Tell the router, and charge the tenant for what the answer took."""
        super().ended(request, now)
        ticket, expected = self._charged.pop(id(request), (None, 0))
        if ticket is not None:
            computed = request.turn.prompt_tokens - request.cached_tokens
            self._queue.charge(ticket, computed - expected + OUTPUT_WEIGHT * request.turn.output_tokens)

    def _with_room(self) -> list[UUID]:
        return [replica for replica in self._present if self.router.has_room(replica, MAX_SEQUENCES)]


class Unshared(FairHearth):
    """One whose queue knows nothing of those of other processes."""

    shared = False


class Untold(FairHearth):
    """A policy whose hosts do not exchange what they charged."""

    def __init__(self, engines: Sequence[Engine], state: SharedState, *, strict: bool = False) -> None:
        super().__init__(engines, state, strict=strict)
        self._queue = FairQueue("", _Silent(state, self.clock))


class _Silent(CounterTable):
    def note(self, key: int, amount: float) -> None:
        """Keep nothing for other hosts."""
