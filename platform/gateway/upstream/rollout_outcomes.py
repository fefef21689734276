"""Count how requests to the replicas of open rollouts go, in this process: what makes a rollout undo itself.

A tenant must not undo a rollout with requests that any engine fails. So a request counts as failed once at most, and
not at all if an engine of the earlier revision fails on it too. A failure counts in full once another engine has
answered the same request. All else a tenant could bring about alone: a failure that no other engine was tried on, an
answer that breaks off, a slow first token. Of these each tenant counts with no higher share of its requests than all
others together have; a tenant that is alone counts in full.

What a tenant can do all the same: undo a rollout while no other tenant uses the model; or with requests that end
engines, which take the requests of others with them, and whose restarts count as failed starts anyway.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from uuid import UUID

from gateway.request import RequestContext
from gateway.upstream.connection import ResponseTooLarge, UpstreamError
from tenants.ids import ReplicaId, TenantId
from workers.serving.endpoints import Endpoint
from workers.serving.rollout_traffic import Traffic

#: Replicas whose counts are kept, those counted first are forgotten first: one that comes back goes on with its own.
MAX_REPLICAS = 1000
#: Tenants counted separately for each replica; further ones count as one.
MAX_TENANTS = 100


@dataclass(slots=True)
class _Counts:
    """What one tenant sent to one replica."""

    requests: int = 0
    failures: int = 0
    slow: int = 0


@dataclass(slots=True)
class _Seen:
    """What all tenants sent to one replica, and the failures that another engine's answer confirmed."""

    tenants: dict[TenantId | None, _Counts] = field(default_factory=dict)
    confirmed: int = 0

    def of(self, tenant_id: TenantId) -> _Counts:
        known = tenant_id in self.tenants or len(self.tenants) < MAX_TENANTS
        return self.tenants.setdefault(tenant_id if known else None, _Counts())

    def traffic(self) -> Traffic:
        every = list(self.tenants.values())
        return Traffic(
            requests=sum(each.requests for each in every),
            failures=self.confirmed + _agreed([(each.requests, each.failures) for each in every]),
            slow=_agreed([(each.requests, each.slow) for each in every]),
        )


class RolloutOutcomes:
    """Outcomes of requests, by replica. Counted on an event loop, read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[ReplicaId, _Seen] = {}

    def count(
        self, context: RequestContext, endpoint: Endpoint, seconds: float, error: BaseException | None = None
    ) -> None:
        """Count one request to one engine: its answer began, or ``error`` ended the wait for it, after ``seconds``.

        An UpstreamError is the engine's fault, except of a response that is too large; another error is the client's.
        A client that left is counted as slow if it had waited that long.
        """
        failed = isinstance(error, UpstreamError) and not isinstance(error, ResponseTooLarge)
        timeline = context.timeline
        if endpoint.watch is None and timeline.blamed is None and not failed:
            return
        with self._lock:
            tenant = self._of(context, endpoint)
            if tenant is not None:
                tenant.requests += 1
            if failed:
                self._failed(context, endpoint, tenant)
            elif tenant is not None and context.call.stream and _is_slow(endpoint, seconds):
                tenant.slow += 1
            if error is None and timeline.blamed is not None:
                self._take_back(context, confirm=True)

    def broke(self, context: RequestContext, endpoint: Endpoint) -> None:
        """Count an answer that began as failed; call it once."""
        with self._lock:
            tenant = self._of(context, endpoint)
            if tenant is not None:
                tenant.failures += 1

    def traffic(self) -> dict[UUID, Traffic]:
        """Return all counts so far, by replica."""
        with self._lock:
            return {replica_id: seen.traffic() for replica_id, seen in self._seen.items()}

    def _of(self, context: RequestContext, endpoint: Endpoint) -> _Counts | None:
        """Return the counts to add to; None for an engine without an open rollout."""
        if endpoint.watch is None:
            return None
        seen = self._seen.get(endpoint.replica_id)
        if seen is None:
            seen = self._seen[endpoint.replica_id] = _Seen()
            if len(self._seen) > MAX_REPLICAS:
                del self._seen[next(iter(self._seen))]
        return seen.of(context.caller.tenant_id)

    def _failed(self, context: RequestContext, endpoint: Endpoint, tenant: _Counts | None) -> None:
        timeline = context.timeline
        if tenant is None and timeline.blamed is not None:
            self._take_back(context, confirm=False)
        elif tenant is not None and not timeline.has_failed:
            tenant.failures += 1
            timeline.blamed = endpoint.replica_id
        timeline.has_failed = True

    def _take_back(self, context: RequestContext, *, confirm: bool) -> None:
        """Count the request's failure as confirmed instead, or not at all."""
        seen = self._seen.get(context.timeline.blamed) if context.timeline.blamed is not None else None
        context.timeline.blamed = None
        if seen is not None:
            tenant = seen.of(context.caller.tenant_id)
            taken = min(1, tenant.failures)  # its replica may have been forgotten, and come back
            tenant.failures -= taken
            seen.confirmed += taken * confirm


def _is_slow(endpoint: Endpoint, seconds: float) -> bool:
    watch = endpoint.watch
    return watch is not None and watch.slow_seconds is not None and seconds > watch.slow_seconds


def _agreed(tenants: list[tuple[int, int]]) -> int:
    """Return how many of the tenants' cases count; each tenant has (requests, cases)."""
    requests, cases = (sum(each) for each in zip(*tenants, strict=True)) if tenants else (0, 0)
    counted = 0
    for own_requests, own_cases in tenants:
        others = requests - own_requests
        counted += min(own_cases, own_requests * (cases - own_cases) // others) if others else own_cases
    return counted
