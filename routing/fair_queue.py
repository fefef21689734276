"""The order in which requests wait while all replicas of a model are full: by class, then by their tenants' counters.

A tenant's counter is the work done for it, in tokens: prompt tokens that were computed, and output tokens, which count
OUTPUT_WEIGHT times, over the tenant's weight. The tenant with the least is served next. So tenants that wait get equal
work, whatever number and size of requests each one sends. This is the virtual token counter of Sheng et al., "Fairness
in Serving Large Language Models" (OSDI 2024), with its weights of 1 and 2.

The counters are shared by all processes of a host, and each process posts with which class and counter its first
request waits. So a request is served only if none that waits in another process comes before it. Other hosts' charges
come with their messages (:mod:`routing.exchange`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import Generic, TypeVar
from uuid import UUID

from routing.shared.counters import Counter, CounterTable
from routing.shared.state import private

T = TypeVar("T")

#: What an output token counts, in prompt tokens: engines compute many prompt tokens in the time of one output token.
OUTPUT_WEIGHT = 2.0
#: How long what another process posted is believed, seconds: it posts every few milliseconds while requests wait.
POSTED_SECONDS = 0.05
#: How long room is left to requests of other processes that come before, seconds. They may not be able to use it: a
#: process may avoid a replica that has just failed, or expect less room. Then all of the room is used.
PATIENCE_SECONDS = 0.02
#: How often the counters of tenants that wait are kept in use, seconds.
TOUCH_SECONDS = 1.0


class Priority(IntEnum):
    """A class of requests. While one of them waits none of a later class is served."""

    HIGH = 0
    STANDARD = 1
    LOW = 2


class Ticket(Generic[T]):
    """The place of one request in the queue."""

    __slots__ = ("counter", "item", "number", "priority", "tenant", "waits", "weight")

    def __init__(self, item: T, tenant: UUID, priority: Priority, weight: float, number: int, counter: Counter) -> None:
        self.item = item
        self.tenant = tenant
        self.priority = priority
        self.weight = weight
        #: In order of arrival.
        self.number = number
        #: That of its tenant in its class.
        self.counter = counter
        self.waits = True


class FairQueue(Generic[T]):
    """The requests that wait for one model in this process. Not thread-safe.

    :meth:`first` looks at each tenant that waits here.
    """

    def __init__(self, model: str = "", counters: CounterTable | None = None) -> None:
        """``counters``: by default those of this queue alone."""
        self._model = model
        self._table = counters or CounterTable(private(0, 0))
        #: Of each class the requests of each tenant, in order of arrival.
        self._classes: tuple[dict[UUID, deque[Ticket[T]]], ...] = tuple({} for _ in Priority)
        self._sizes = [0] * len(Priority)
        #: Of each class the counter of the tenant that was served last, before it was charged. A tenant that comes has
        #: no less: it saves up no credit while it sends nothing.
        self._least = [Counter(self._table, f"{model} {each.name}") for each in Priority]
        #: What each process posted, by its number.
        self._posts: list[Counter] = []
        self._own_post = self._post_of(self._table.state.host.process)
        self._has_posted = False
        #: When the counters of tenants that wait were last kept in use.
        self._touched_at = self._table.clock()
        #: Since when there is room that is left to others.
        self._patient_since: float | None = None
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return sum(self._sizes)

    def size(self, priority: Priority) -> int:
        """Return how many requests of a class wait."""
        return self._sizes[priority]

    def size_of(self, tenant: UUID, priority: Priority) -> int:
        """Return how many requests of a tenant wait in a class."""
        return len(self._classes[priority].get(tenant, ()))

    def counter(self, tenant: UUID, priority: Priority = Priority.STANDARD) -> float:
        """Return a tenant's counter in a class."""
        return self._counter(tenant, priority).value

    def add(self, item: T, tenant: UUID, priority: Priority = Priority.STANDARD, weight: float = 1.0) -> Ticket[T]:
        """Let a request wait, behind the earlier ones of its tenant and class."""
        waiting, least = self._classes[priority].get(tenant), self._least[priority]
        counter = waiting[0].counter if waiting else self._counter(tenant, priority)
        counter.touch()
        if waiting is None:
            least.touch()
            if counter.value < least.value:
                counter.set(least.value)
            waiting = self._classes[priority][tenant] = deque()
        ticket = Ticket(item, tenant, priority, weight, next(self._numbers), counter)
        waiting.append(ticket)
        self._sizes[priority] += 1
        return ticket

    def first(self, *, without: Collection[UUID] = ()) -> Ticket[T] | None:
        """Return the request that is next in this process, except those of some tenants; None if none waits."""
        for group in self._classes:
            heads = (waiting[0] for tenant, waiting in group.items() if tenant not in without)
            found = min(heads, key=lambda each: (each.counter.value, each.number), default=None)
            if found is not None:
                return found
        return None

    def post(self, first: Ticket[T] | None) -> None:
        """Publish to the other processes what is first here. While requests wait call it every few milliseconds."""
        if first is not None:
            self._own_post.set(first.counter.value, _rank(first.priority))
            self._has_posted = True
            self._touch()
        elif self._has_posted:
            self._own_post.set(0.0)
            self._has_posted = False

    def others_wait(self) -> bool:
        """Return whether requests wait in other processes."""
        return any(True for _ in self._others())

    def may_serve(self, ticket: Ticket[T], *, room: bool) -> bool:
        """Return whether there is ``room`` for a request that is first here, and no other process needs it before."""
        own = _rank(ticket.priority), ticket.counter.value
        if not room or not any(other < own for other in self._others()):
            self._patient_since = None
            return room
        now = self._table.clock()
        if self._patient_since is None:
            self._patient_since = now
        return now - self._patient_since >= PATIENCE_SECONDS

    def take(self, ticket: Ticket[T], tokens: float) -> None:
        """Let a request wait no longer because it is served. ``tokens``: what it takes, as far as that is known."""
        least = self._least[ticket.priority]
        least.set(max(least.value, ticket.counter.value))
        self.charge(ticket, tokens)
        self.remove(ticket)

    def charge(self, ticket: Ticket[T], tokens: float) -> None:
        """Add tokens to the counter of a served request's tenant; negative ones correct what was too much."""
        ticket.counter.charge(tokens / ticket.weight)

    def remove(self, ticket: Ticket[T]) -> None:
        """Let a request wait no longer. Idempotent."""
        if not ticket.waits:
            return
        ticket.waits = False
        group = self._classes[ticket.priority]
        waiting = group[ticket.tenant]
        if waiting[0] is ticket:
            waiting.popleft()
        else:
            waiting.remove(ticket)
        self._sizes[ticket.priority] -= 1
        if not waiting:
            del group[ticket.tenant]
        if not self:
            self._patient_since = None
            self.post(None)

    def _touch(self) -> None:
        """Keep the counters of tenants that wait from being displaced, and open to charges of other hosts."""
        now = self._table.clock()
        if now - self._touched_at >= TOUCH_SECONDS:
            self._touched_at = now
            for group in self._classes:
                for waiting in group.values():
                    waiting[0].counter.touch()

    def _counter(self, tenant: UUID, priority: Priority) -> Counter:
        return Counter(self._table, f"{self._model} {priority.name} {tenant}", self._least[priority])

    def _others(self) -> Iterator[tuple[int, float]]:
        """Yield rank and counter of the first request of each other process in which requests wait."""
        state = self._table.state
        for process in range(state.processes):
            if process != state.host.process:
                posted = self._post_of(process).ranked(POSTED_SECONDS)
                if posted is not None:
                    yield posted

    def _post_of(self, process: int) -> Counter:
        while len(self._posts) <= process:
            self._posts.append(Counter(self._table, f"{self._model} process {len(self._posts)}"))
        return self._posts[process]


def _rank(priority: Priority) -> int:
    """Return what is posted for a class."""
    return priority + 1
