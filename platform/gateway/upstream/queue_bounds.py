"""How much each tenant may have in a queue of this process: requests and bytes, because they wait in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from catalogue.registry import ServedModel
from gateway import metrics
from tenants.ids import TenantId
from tenants.snapshot.snapshot import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRequest:
    """A request that waits for a replica.

    ``tokens``: prompt and completion, as routing counts them. ``waited_seconds``: time already spent as a follower.
    """

    caller: Caller
    model: ServedModel
    size_bytes: int
    tokens: int
    waited_seconds: float = 0.0


@dataclass(slots=True)
class _TenantUsage:
    """The queued requests of one tenant."""

    requests: int = 0
    size_bytes: int = 0


class QueueBounds:
    """Counts the requests of one queue. Lives on one event loop."""

    def __init__(self) -> None:
        self._usage: dict[TenantId, _TenantUsage] = {}

    def allow(self, request: QueuedRequest) -> bool:
        """Return whether the tenant may queue one more. No ``await`` between this and :meth:`counted`."""
        usage = self._usage.get(request.caller.tenant_id, _TenantUsage())
        policy = request.caller.policy
        return usage.requests < policy.queue_requests and usage.size_bytes + request.size_bytes <= policy.queue_bytes

    @contextmanager
    def counted(self, request: QueuedRequest) -> Iterator[None]:
        """Count the request inside the ``with`` block."""
        usage = self._usage.setdefault(request.caller.tenant_id, _TenantUsage())
        usage.requests += 1
        usage.size_bytes += request.size_bytes
        gauge = metrics.QUEUED_REQUESTS.labels(request.model.name)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()
            usage.requests -= 1
            usage.size_bytes -= request.size_bytes
            if not usage.requests:
                self._usage.pop(request.caller.tenant_id, None)

    @property
    def requests(self) -> int:
        """Return how many requests wait."""
        return sum(usage.requests for usage in self._usage.values())
