"""Tell the fleet what this process has in flight and what it holds, and wake it when a first request waits."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable
from uuid import UUID

import psycopg
from django.db.utils import Error as DjangoError

from gateway.control_plane.in_flight import InFlight
from gateway.control_plane.snapshot_feed import ControlSnapshot
from workers import tasks
from workers.serving import gateway_load
from workers.serving.gateway_load import KEEP_ALIVE_SECONDS, DeploymentLoad

log = logging.getLogger(__name__)

REPORT_SECONDS = 1.0


def process_name(role: str, node: str) -> str:
    """Return a name for this process that no other has: in containers, pids and the names of nodes repeat."""
    return f"{role}/{os.getpid()}-{secrets.token_hex(4)}@{node}"[:200]


class LoadReporter:
    """Writes reports in the feed's thread, each second that has news and every KEEP_ALIVE_SECONDS.

    A report that fails is lost; the next one says everything again.
    """

    def __init__(self, process: str, in_flight: InFlight, poke: Callable[[], None] = tasks.wake_control) -> None:
        self._process = process
        self._in_flight = in_flight
        self._poke = poke
        self._told: dict[UUID, DeploymentLoad] = {}
        self._told_at = 0.0
        self._busy: set[UUID] = set()

    def report_if_due(self, view: ControlSnapshot) -> None:
        """Report if it is time, at once when the first request of a deployment is held."""
        moved = self._in_flight.changed()
        self._busy |= {each.id for each in view.deployments if each.name in moved}
        counted = self._in_flight.loads()
        current = {each.id: counted.get(each.name, DeploymentLoad()) for each in view.deployments}
        waits = any(load.queued_requests and not self._held(deployment) for deployment, load in current.items())
        age = time.monotonic() - self._told_at
        no_news = current == self._told and not self._busy
        if not waits and (age < REPORT_SECONDS or (no_news and age < KEEP_ALIVE_SECONDS)):
            return
        self._told_at = time.monotonic()
        try:
            gateway_load.report(self._process, current, self._busy)
        except (DjangoError, psycopg.Error) as error:
            log.warning("what is in flight could not be reported: %s", error)
            return
        self._told, self._busy = current, set()
        if waits:
            self._poke()

    def _held(self, deployment: UUID) -> bool:
        return self._told.get(deployment, DeploymentLoad()).queued_requests > 0
