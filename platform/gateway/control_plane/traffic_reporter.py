"""Report to the fleet how this process's requests to the replicas of open rollouts go."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from uuid import UUID

import psycopg
from django.db.utils import Error as DjangoError

from gateway.control_plane.load_reporter import REPORT_SECONDS
from workers.serving import rollout_traffic
from workers.serving.rollout_traffic import Traffic

log = logging.getLogger(__name__)


class TrafficReporter:
    """Writes reports in the feed's thread: each second with changes. A report that fails is repeated with the next."""

    def __init__(self, process: str, counted: Callable[[], Mapping[UUID, Traffic]]) -> None:
        """``counted`` returns all counts so far, by replica."""
        self._process = process
        self._counted = counted
        self._reported: Mapping[UUID, Traffic] = {}
        self._reported_at = 0.0

    def report_if_due(self) -> None:
        """Report what has changed, if the last report is old enough."""
        if time.monotonic() - self._reported_at < REPORT_SECONDS:
            return
        current = self._counted()
        if current == self._reported:
            return
        self._reported_at = time.monotonic()
        changed = {each: traffic for each, traffic in current.items() if self._reported.get(each) != traffic}
        try:
            rollout_traffic.report(self._process, changed)
        except (DjangoError, psycopg.Error) as error:
            log.warning("the traffic of rollouts could not be reported: %s", error)
            return
        self._reported = current
