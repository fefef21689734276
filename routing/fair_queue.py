"""The order in which requests wait while all replicas of a model are full: by class, then by their tenants' counters.

A tenant's counter is the work done for it, in tokens: prompt tokens that were computed, and output tokens, which count
OUTPUT_WEIGHT times, over the tenant's weight. The tenant with the least is served next. So tenants that wait get equal
work, whatever number and size of requests each one sends. This is the virtual token counter of Sheng et al., "Fairness
in Serving Large Language Models" (OSDI 2024), with its weights of 1 and 2.
"""

from __future__ import annotations

import itertools
from collections import deque
from enum import IntEnum
from typing import Generic, TypeVar
from uuid import UUID

T = TypeVar("T")

#: What an output token counts, in prompt tokens: engines compute many prompt tokens in the time of one output token.
OUTPUT_WEIGHT = 2.0
#: How many tenants' counters a queue keeps before it looks which of them still matter.
FORGET_AT = 100


class Priority(IntEnum):
    """A class of requests. While one of them waits none of a later class is served."""

    HIGH = 0
    STANDARD = 1
    LOW = 2


class Ticket(Generic[T]):
    """The place of one request in the queue."""

    __slots__ = ("item", "number", "priority", "tenant", "waits", "weight")

    def __init__(self, item: T, tenant: UUID, priority: Priority, weight: float, number: int) -> None:
        self.item = item
        self.tenant = tenant
        self.priority = priority
        self.weight = weight
        #: In order of arrival.
        self.number = number
        self.waits = True


class FairQueue(Generic[T]):
    """The requests that wait for one model. Not thread-safe. :meth:`first` looks at each tenant that waits."""

    def __init__(self) -> None:
        #: Of each class the requests of each tenant, in order of arrival.
        self._classes: tuple[dict[UUID, deque[Ticket[T]]], ...] = tuple({} for _ in Priority)
        self._sizes = [0] * len(Priority)
        #: Of each class; tenants without one have the least.
        self._counters: tuple[dict[UUID, float], ...] = tuple({} for _ in Priority)
        #: Of each class the counter of the tenant that was served last, before it was charged. A tenant that comes has
        #: no less: it saves up no credit while it sends nothing.
        self._least = [0.0] * len(Priority)
        self._forget_at = [FORGET_AT] * len(Priority)
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
        return self._counters[priority].get(tenant, self._least[priority])

    def add(self, item: T, tenant: UUID, priority: Priority = Priority.STANDARD, weight: float = 1.0) -> Ticket[T]:
        """Let a request wait, behind the earlier ones of its tenant and class."""
        if tenant not in self._classes[priority]:
            self._forget_small(priority)
            self._counters[priority][tenant] = max(self.counter(tenant, priority), self._least[priority])
        ticket = Ticket(item, tenant, priority, weight, next(self._numbers))
        self._classes[priority].setdefault(tenant, deque()).append(ticket)
        self._sizes[priority] += 1
        return ticket

    def first(self) -> Ticket[T] | None:
        """Return the request that is next, or None if none waits."""
        for group, counters in zip(self._classes, self._counters, strict=True):
            if group:
                return min((each[0] for each in group.values()), key=lambda each: (counters[each.tenant], each.number))
        return None

    def take(self, ticket: Ticket[T], tokens: float) -> None:
        """Let a request wait no longer because it is served. ``tokens``: what it takes, as far as that is known."""
        priority = ticket.priority
        self._least[priority] = max(self._least[priority], self.counter(ticket.tenant, priority))
        self.charge(ticket, tokens)
        self.remove(ticket)

    def charge(self, ticket: Ticket[T], tokens: float) -> None:
        """Add tokens to the counter of a served request's tenant; negative ones correct what was too much."""
        counter = self.counter(ticket.tenant, ticket.priority)
        self._counters[ticket.priority][ticket.tenant] = counter + tokens / ticket.weight

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

    def _forget_small(self, priority: Priority) -> None:
        """Forget tenants that are not ahead of the others: when they come again they begin at the least."""
        counters, least, group = self._counters[priority], self._least[priority], self._classes[priority]
        if len(counters) < self._forget_at[priority]:
            return
        for tenant in [each for each, counter in counters.items() if counter <= least and each not in group]:
            del counters[tenant]
        self._forget_at[priority] = max(FORGET_AT, 2 * len(counters))
