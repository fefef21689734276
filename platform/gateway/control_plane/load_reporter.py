"""Report this process's requests in flight and in the queue to the fleet, and wake the scheduler for the first one.

While a rollout is open, the reports also name the replicas that requests can go to: an earlier replica drains only
once every process sends requests to its successor.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

import psycopg
from django.db.utils import Error as DjangoError

from gateway.control_plane.in_flight import InFlight
from gateway.control_plane.snapshot_feed import ControlSnapshot
from workers import tasks
from workers.serving import gateway_load
from workers.serving.endpoints import Endpoint
from workers.serving.gateway_load import KEEP_ALIVE_SECONDS, DeploymentLoad

log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0


def process_name(role: str, node: str) -> str:
    """Return a unique name for this process: in containers, pids and names of nodes repeat."""
    return f"{role}/{os.getpid()}-{secrets.token_hex(4)}@{node}"[:200]


class LoadReporter:
    """Writes reports in the feed's thread: each second with changes, and every KEEP_ALIVE_SECONDS.

    A report that fails is lost; the next one is complete.
    """

    def __init__(self, process: str, in_flight: InFlight, wake: Callable[[], None] = tasks.wake_control) -> None:
        self._process = process
        self._in_flight = in_flight
        self._wake = wake
        self._reported: dict[UUID, DeploymentLoad] = {}
        self._reported_at = 0.0
        self._busy: set[UUID] = set()
        #: The replicas that the event loop knows, and what was last reported of them.
        self._known: frozenset[UUID] = frozenset()
        self._routed: Mapping[UUID, frozenset[UUID]] = {}

    def follow(self, endpoints: Iterable[Endpoint]) -> None:
        """Record the replicas among which requests choose from now on. Call it on the event loop."""
        self._known = frozenset(each.replica_id for each in endpoints)

    def report_if_due(self, snapshot: ControlSnapshot) -> None:
        """Report if it is due: at once when the first request of a deployment is queued, or the replicas change that
        deployments with a rollout have.
        """
        changed = self._in_flight.changed()
        self._busy |= {each.id for each in snapshot.deployments if each.name in changed}
        counted = self._in_flight.loads()
        current = {each.id: counted.get(each.name, DeploymentLoad()) for each in snapshot.deployments}
        waiting = any(load.queued_requests and not self._was_queued(deployment) for deployment, load in current.items())
        routed = self._routes(snapshot)
        at_once = waiting or routed != self._routed
        age = time.monotonic() - self._reported_at
        unchanged = current == self._reported and not self._busy
        if not at_once and (age < REPORT_SECONDS or (unchanged and age < KEEP_ALIVE_SECONDS)):
            return
        self._reported_at = time.monotonic()
        try:
            gateway_load.report(self._process, current, self._busy, routed)
        except (DjangoError, psycopg.Error) as error:
            log.warning("the load of this process could not be reported: %s", error)
            return
        self._reported, self._busy, self._routed = current, set(), routed
        if waiting:
            self._wake()

    def _routes(self, snapshot: ControlSnapshot) -> dict[UUID, frozenset[UUID]]:
        """Return the replicas of each deployment with a rollout that are ready and that the event loop knows."""
        ready = [each for group in snapshot.endpoints.values() for each in group]
        watched = {each.deployment for each in ready if each.watch is not None}
        if not watched:
            return {}
        routed: dict[str, set[UUID]] = {name: set() for name in watched}
        for each in ready:
            if each.deployment in watched and each.replica_id in self._known:
                routed[each.deployment].add(each.replica_id)
        return {each.id: frozenset(routed[each.name]) for each in snapshot.deployments if each.name in watched}

    def _was_queued(self, deployment: UUID) -> bool:
        return self._reported.get(deployment, DeploymentLoad()).queued_requests > 0
