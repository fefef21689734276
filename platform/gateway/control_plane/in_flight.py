"""Count the requests in flight at engines and those in the queue, by deployment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from workers.serving.gateway_load import DeploymentLoad, join_regions

#: The regions of a request that may run in all of them.
ANYWHERE: frozenset[str] = frozenset()


class InFlight:
    """Requests and tokens of each deployment, by name. Counted on an event loop, read from any thread.

    ``regions``: those in which a request may run; empty: all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: In the order of Load: requests and tokens in flight, requests and tokens queued.
        self._counts: dict[str, list[int]] = {}
        #: By deployment and regions, the tokens in flight and queued of requests that may not run anywhere.
        self._regional: dict[str, dict[frozenset[str], int]] = {}
        self._changed: set[str] = set()

    def start(self, deployment: str, tokens: int, regions: frozenset[str] = ANYWHERE) -> None:
        """Count a request that is sent to an engine."""
        self._add(deployment, 0, 1, tokens, regions)

    def finish(self, deployment: str, tokens: int, regions: frozenset[str] = ANYWHERE) -> None:
        """End the count of a request; exactly once for each :meth:`start`."""
        self._add(deployment, 0, -1, -tokens, regions)

    @contextmanager
    def queued(self, deployment: str, tokens: int, regions: frozenset[str] = ANYWHERE) -> Iterator[None]:
        """Count a request as queued inside the ``with`` block."""
        self._add(deployment, 2, 1, tokens, regions)
        try:
            yield
        finally:
            self._add(deployment, 2, -1, -tokens, regions)

    def changed(self) -> set[str]:
        """Return the deployments with a request that started or ended since the last call."""
        with self._lock:
            changed, self._changed = self._changed, set()
        return changed

    def loads(self) -> dict[str, DeploymentLoad]:
        """Return the current counts; a deployment that never had a request is absent."""
        with self._lock:
            counts = {deployment: tuple(each) for deployment, each in self._counts.items()}
            regional = {deployment: dict(each) for deployment, each in self._regional.items()}
        return {
            deployment: DeploymentLoad(
                in_flight_requests=each[0],
                in_flight_tokens=each[1],
                queued_requests=each[2],
                queued_tokens=each[3],
                regional_tokens={join_regions(names): tokens for names, tokens in regional.get(deployment, {}).items()},
            )
            for deployment, each in counts.items()
        }

    def _add(self, deployment: str, at: int, requests: int, tokens: int, regions: frozenset[str]) -> None:
        with self._lock:
            each = self._counts.setdefault(deployment, [0, 0, 0, 0])
            self._changed.add(deployment)
            each[at] += requests
            each[at + 1] += tokens
            if regions:
                regional = self._regional.setdefault(deployment, {})
                regional[regions] = regional.get(regions, 0) + (tokens or requests)  # a request counts for one at least
                if not regional[regions]:
                    del regional[regions]
