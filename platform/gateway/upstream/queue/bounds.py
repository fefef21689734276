"""How much each tenant may have in the queues of this process: requests and bytes, because they wait in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from catalogue.registry import ServedModel
from gateway import metrics
from tenants.ids import TenantId
from tenants.snapshot.snapshot import Caller


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedRequest:
    """A request that waits for a replica.

    ``tokens``: prompt and completion, as routing counts them. ``waited_seconds``: time that it has
    waited so far, as a follower, for a replica and for room on one; all of it counts against ``queue_seconds``.
    ``admitted``: it has waited in one queue of this process, so no other refuses it.
    """

    caller: Caller
    model: ServedModel
    size_bytes: int
    tokens: int
    waited_seconds: float = 0.0
    admitted: bool = False

    @property
    def goes_to_some(self) -> bool:
        """Return whether only some replicas of the model may serve it: in its regions, or with its adapter."""
        return bool(self.caller.allowed_regions or self.model.base)

    @property
    def left_seconds(self) -> float:
        """Return how much longer it may wait; at most 0 when its time is over."""
        return self.caller.policy.queue_seconds - self.waited_seconds


@dataclass(slots=True)
class _TenantUsage:
    """The queued requests of one tenant."""

    requests: int = 0
    size_bytes: int = 0


class QueueBounds:
    """Counts the requests in all queues of one process. Lives on one event loop."""

    def __init__(self) -> None:
        self._usage: dict[TenantId, _TenantUsage] = {}

    def exceeded(self, request: QueuedRequest) -> str | None:
        """Return what of the tenant's policy forbids to queue this request; None if it may wait.

        No ``await`` between this and :meth:`counted`.
        """
        if request.admitted:
            return None
        usage = self._usage.get(request.caller.tenant_id, _TenantUsage())
        policy = request.caller.policy
        if usage.requests >= policy.queue_requests:
            return f"`queue_requests` ({policy.queue_requests})"
        if usage.size_bytes + request.size_bytes > policy.queue_bytes:
            return f"`queue_bytes` ({policy.queue_bytes})"
        return None

    @contextmanager
    def counted(self, request: QueuedRequest) -> Iterator[None]:
        """Count the request, and the time that it waits, inside the ``with`` block."""
        usage = self._usage.setdefault(request.caller.tenant_id, _TenantUsage())
        request.admitted = True
        usage.requests += 1
        usage.size_bytes += request.size_bytes
        gauge = metrics.QUEUED_REQUESTS.labels(request.model.name)
        gauge.inc()
        began = time.monotonic()
        try:
            yield
        finally:
            request.waited_seconds += time.monotonic() - began
            gauge.dec()
            usage.requests -= 1
            usage.size_bytes -= request.size_bytes
            if not usage.requests:
                self._usage.pop(request.caller.tenant_id, None)

    @property
    def requests(self) -> int:
        """Return how many requests wait."""
        return sum(usage.requests for usage in self._usage.values())
