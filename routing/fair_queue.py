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
        #: Tenants without one have the least.
        self._counters: dict[UUID, float] = {}
        #: The counter of the tenant that was served last, before it was charged. A tenant that comes has no less: it
        #: saves up no credit while it sends nothing.
        self._least = 0.0
        self._forget_at = FORGET_AT
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return sum(self._sizes)

    def size(self, priority: Priority) -> int:
        """Return how many requests of a class wait."""
        return self._sizes[priority]

    def counter(self, tenant: UUID) -> float:
        """Return a tenant's counter."""
        return self._counters.get(tenant, self._least)

    def add(self, item: T, tenant: UUID, priority: Priority = Priority.STANDARD, weight: float = 1.0) -> Ticket[T]:
        """Let a request wait, behind the earlier ones of its tenant and class."""
        if not self._waits(tenant):
            self._forget_small()
            self._counters[tenant] = max(self.counter(tenant), self._least)
        ticket = Ticket(item, tenant, priority, weight, next(self._numbers))
        self._classes[priority].setdefault(tenant, deque()).append(ticket)
        self._sizes[priority] += 1
        return ticket

    def first(self) -> Ticket[T] | None:
        """Return the request that is next, or None if none waits."""
        for group in self._classes:
            if group:
                waiting = min(group.values(), key=lambda each: (self.counter(each[0].tenant), each[0].number))
                return waiting[0]
        return None

    def take(self, ticket: Ticket[T], tokens: float) -> None:
        """Let a request wait no longer because it is served. ``tokens``: what it takes, as far as that is known."""
        self._least = max(self._least, self.counter(ticket.tenant))
        self.charge(ticket, tokens)
        self.remove(ticket)

    def charge(self, ticket: Ticket[T], tokens: float) -> None:
        """Add tokens to the counter of a served request's tenant; negative ones correct what was too much."""
        self._counters[ticket.tenant] = self.counter(ticket.tenant) + tokens / ticket.weight

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

    def _waits(self, tenant: UUID) -> bool:
        return any(tenant in group for group in self._classes)

    def _forget_small(self) -> None:
        """Forget tenants that are not ahead of the others: when they come again they begin at the least."""
        if len(self._counters) < self._forget_at:
            return
        self._counters = {
            tenant: counter
            for tenant, counter in self._counters.items()
            if counter > self._least or self._waits(tenant)
        }
        self._forget_at = max(FORGET_AT, 2 * len(self._counters))
