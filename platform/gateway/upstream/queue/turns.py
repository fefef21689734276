"""Let requests wait while every replica of their model is full, and give them their turns in a fair order.

An engine serves what waits in its own queue in order of arrival, so one tenant's flood would delay everybody there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal
from uuid import UUID

import msgspec

from gateway import errors, metrics
from gateway.control_plane.in_flight import InFlight
from gateway.upstream.queue.bounds import QueueBounds, QueuedRequest
from routing.fair_queue import OUTPUT_WEIGHT, FairQueue, Priority, Ticket
from routing.router import Choice, Router, RoutingRequest
from routing.shared.counters import CounterTable
from workers.serving.endpoints import Endpoint

#: While requests wait, seconds between two looks for room: other processes do not signal that one of theirs ended.
LOOK_SECONDS = 0.005
#: Requests that wait for one model in this process, of each class. Each tenant's policy bounds its own before, and a
#: tenant has no more of these places than are free: one alone half of them, two a third each.
MAX_WAITING = 4096

Outcome = Literal["served", "refused", "expired", "client_gone"]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A request for which a replica is to be chosen. ``ready`` returns those that it may go to now."""

    request: RoutingRequest
    queued: QueuedRequest
    ready: Callable[[], Sequence[Endpoint]]


class Turn:
    """Where a request goes first: a choice, or None while no replica is ready; and what it costs its tenant."""

    __slots__ = ("_charge", "choice", "endpoints", "split")

    def __init__(
        self,
        choice: Choice | None,
        endpoints: Sequence[Endpoint],
        charge: _Charge | None = None,
        *,
        split: str = "",
    ) -> None:
        """``charge`` is None for a request that did not wait; such requests are not counted.

        ``split``: see :meth:`catalogue.routing_policy.Comparison.split`.
        """
        self.choice = choice
        self.split = split
        self.endpoints = endpoints
        self._charge = charge

    def wrote(self, output_tokens: int) -> None:
        """Record how much of an answer was sent, when its request has ended; :meth:`used` knows better."""
        if self._charge is not None:
            self._charge.add_output(output_tokens)

    def used(self, computed_tokens: int, output_tokens: int) -> None:
        """Record what the engine reports: prompt tokens that it computed, and output tokens."""
        if self._charge is not None:
            self._charge.add_output(output_tokens)
            self._charge.correct(computed_tokens)
            self._charge = None


class _Charge:
    """What a request that waited adds to its tenant's counter."""

    __slots__ = ("_expected", "_output", "_queue", "_ticket")

    def __init__(self, queue: FairQueue[_Waiter], ticket: Ticket[_Waiter], choice: Choice) -> None:
        self._queue = queue
        self._ticket = ticket
        self._expected = choice.prefix.tokens - choice.warm_tokens
        self._output = 0
        queue.take(ticket, self._expected)

    def add_output(self, tokens: int) -> None:
        """Charge for an answer of ``tokens`` in all, less what was charged for it before."""
        self._queue.charge(self._ticket, OUTPUT_WEIGHT * (tokens - self._output))
        self._output = tokens

    def correct(self, computed_tokens: int) -> None:
        """Charge for the prompt as it was, instead of as it was expected."""
        self._queue.charge(self._ticket, computed_tokens - self._expected)


class _Waiter:
    """One request that waits."""

    __slots__ = ("queue", "turn", "waiting")

    def __init__(self, waiting: Waiting, queue: FairQueue[_Waiter]) -> None:
        self.waiting = waiting
        self.queue = queue
        self.turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()


class _ModelQueue(FairQueue[_Waiter]):
    """The requests that wait for one model."""

    def __init__(self, model: str, counters: CounterTable) -> None:
        super().__init__(model, counters)
        #: How long the request that was served last had waited; 0 until one is served while others wait.
        self.last_wait_seconds = 0.0

    def retry_after_seconds(self, queued: QueuedRequest) -> float:
        """Return when a refused request may come back: no later than it could have waited itself."""
        return min(self.last_wait_seconds, queued.caller.policy.queue_seconds)


class Turns:
    """The requests of this process that wait for room. Lives on one event loop."""

    def __init__(
        self,
        router: Router,
        in_flight: InFlight,
        bounds: QueueBounds,
        usable: Callable[[Collection[UUID]], Sequence[UUID]],
    ) -> None:
        """``bounds``: of the whole process. ``usable`` leaves out replicas that just failed."""
        self.bounds = bounds
        self._router = router
        self._in_flight = in_flight
        self._usable = usable
        #: By the model whose replicas serve: its adapters wait with it.
        self._queues: dict[str, _ModelQueue] = {}
        #: Those in which requests wait, and some in which none waits any more.
        self._in_use: dict[str, _ModelQueue] = {}
        self._timer: asyncio.TimerHandle | None = None

    def at_once(self, waiting: Waiting) -> Turn | None:
        """Return a turn if nothing waits for the model, in whatever process of the host, and a replica has room, or if
        the request may not wait.
        """
        policy = waiting.queued.caller.policy
        may_wait = policy.queue_requests > 0 and policy.queue_seconds > waiting.queued.waited_seconds
        if may_wait and ((queue := self._queue(waiting.queued.model.served_by)) or queue.others_wait()):
            return None
        endpoints = waiting.ready()
        if not endpoints:
            return Turn(None, endpoints)
        if may_wait and next(self._with_room(endpoints), None) is None:
            return None
        choice, split = self._choose(waiting, endpoints)
        return Turn(choice, endpoints, split=split)

    async def wait(self, waiting: Waiting) -> Turn:
        """Return a turn when it is the request's. Raises Unavailable if too many wait, or it waited too long."""
        queued, began = waiting.queued, time.monotonic()
        queue = self._queue(queued.model.served_by)
        if not queue:  # the last wait was in an earlier queue
            queue.last_wait_seconds = 0.0
        outcome: Outcome = "client_gone"
        try:
            self._require_capacity(queue, queued)
            endpoints = waiting.ready()
            deployment = endpoints[0].deployment if endpoints else ""
            with (
                self.bounds.counted(queued),
                self._in_flight.queued(deployment, queued.tokens, queued.caller.allowed_regions),
            ):
                turn = await self._turn_of(queue, waiting)
            outcome, queue.last_wait_seconds = "served", time.monotonic() - began
            return turn
        except TimeoutError:
            outcome = "expired"
            retry_after_seconds = queue.retry_after_seconds(queued)
            raise errors.replicas_busy(
                queued.model.name, queued.caller.policy.queue_seconds, retry_after_seconds
            ) from None
        except errors.GatewayError:
            outcome = "refused"
            raise
        finally:
            metrics.QUEUE_SECONDS.labels(queued.model.name, outcome).observe(time.monotonic() - began)

    def made_room(self) -> None:
        """Give turns to waiting requests soon: when what the request used that made room is known."""
        if self._timer is not None:
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Give turns to waiting requests while replicas have room."""
        if self._timer is None:  # nothing waits
            return
        for model, queue in list(self._in_use.items()):
            if not self._serve(queue):
                del self._in_use[model]
        if not self._in_use:
            self._timer.cancel()
            self._timer = None

    def give_back(self, turn: Turn) -> None:
        """Undo the choice of a turn that was not used."""
        turn.used(0, 0)
        if turn.choice is not None:
            self._router.finish(turn.choice, answered=False)

    def _require_capacity(self, queue: _ModelQueue, queued: QueuedRequest) -> None:
        name, priority = queued.model.name, _priority(queued)
        if limit := self.bounds.exceeded(queued):
            raise errors.queue_full(f"Every replica of {name!r} is full", limit, queue.retry_after_seconds(queued))
        own, free = queue.size_of(queued.caller.tenant_id, priority), MAX_WAITING - queue.size(priority)
        if not queued.admitted and own >= free:
            raise errors.busy_queue_full(name, queue.retry_after_seconds(queued))

    async def _turn_of(self, queue: _ModelQueue, waiting: Waiting) -> Turn:
        """Raises TimeoutError."""
        queued = waiting.queued
        waiter = _Waiter(waiting, queue)
        policy = queued.caller.policy
        ticket = queue.add(waiter, queued.caller.tenant_id, _priority(queued), policy.weight)
        self._in_use[queued.model.served_by] = queue
        if self._timer is None:
            self._look_later()
            self.made_room()  # it may have come only because requests wait in other processes
        try:
            async with asyncio.timeout(queued.left_seconds):
                return await waiter.turn
        except BaseException:
            queue.remove(ticket)
            if waiter.turn.done() and not waiter.turn.cancelled():  # it came at the moment at which the wait ended
                self.give_back(waiter.turn.result())
            raise

    def _serve(self, queue: FairQueue[_Waiter]) -> int:
        """Give turns to the first requests of a queue while there is room; return how many wait on.

        Tenants for whom only some replicas have no room, those of their regions or of an adapter, hold nobody else up.
        """
        held_up: set[UUID] = set()
        while (ticket := queue.first(without=held_up)) is not None:
            waiter = ticket.item
            if waiter.turn.done():  # it was cancelled, and its task will notice
                queue.remove(ticket)
                continue
            endpoints = waiter.waiting.ready()
            if not endpoints:
                queue.remove(ticket)
                turn = Turn(None, endpoints)
            elif queue.may_serve(ticket, room=bool(free := set(self._with_room(endpoints)))):
                # Without a queue a warm prefix may be worth a wait at its replica. Here that would delay other tenants.
                choice, split = self._choose(waiter.waiting, endpoints, free)
                turn = Turn(choice, endpoints, _Charge(queue, ticket, choice), split=split)
            elif not free and waiter.waiting.queued.goes_to_some:
                held_up.add(ticket.tenant)
                continue
            else:
                break
            waiter.turn.set_result(turn)
        queue.post(ticket or queue.first())
        return len(queue)

    def _queue(self, model: str) -> _ModelQueue:
        found = self._queues.get(model)
        if found is None:
            found = self._queues[model] = _ModelQueue(model, self._router.counters)
        return found

    def _choose(
        self, waiting: Waiting, endpoints: Sequence[Endpoint], free: Collection[UUID] | None = None
    ) -> tuple[Choice, str]:
        """Return the choice, by the policy of the replicas' deployment, and the split if it compares two."""
        usable = self._usable([each.replica_id for each in endpoints])
        policy, split = endpoints[0].routing.of(waiting.request.conversation, time.time())
        return self._router.choose(waiting.request, usable, free=free, policy=policy), split

    def _with_room(self, endpoints: Sequence[Endpoint]) -> Iterator[UUID]:
        """Yield the replicas that have room; one that just failed runs nothing, and is left out all the same."""
        usable = self._usable([each.replica_id for each in endpoints])
        for each in endpoints:
            if each.replica_id in usable and self._router.has_room(each.replica_id, each.max_requests):
                yield each.replica_id

    def _look_later(self) -> None:
        def look() -> None:
            self._look_later()
            self._look()

        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, look)


def _priority(queued: QueuedRequest) -> Priority:
    return Priority[queued.caller.policy.priority.upper()]
