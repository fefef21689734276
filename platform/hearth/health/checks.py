"""Liveness and readiness of a role: its loops, and what it depends on.

Liveness covers the process only: a role whose database is unavailable is alive, because a restart would not help.
Readiness covers dependencies: without some of them a role is degraded, without others it is not ready.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector

from billing.wal.disk_usage import DiskUsage

log = logging.getLogger(__name__)

CheckState = Literal["ok", "degraded", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One dependency of a role. ``missing``: the role cannot work; ``degraded``: it works with reduced function."""

    name: str
    state: CheckState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that must run regularly. ``age_seconds`` returns the time since its last round.

    None before the first round and while the loop waits on purpose.
    """

    name: str
    limit_seconds: float
    age_seconds: Callable[[], float | None]


class Heartbeat:
    """The time of a loop's last round. The loop writes it, and the listener's thread reads it."""

    def __init__(self) -> None:
        self._at: float | None = None

    def beat(self) -> None:
        """Record that the loop runs now."""
        self._at = time.monotonic()

    def rest(self) -> None:
        """Record that the loop now waits on purpose, for example for a server to come back."""
        self._at = None

    def age_seconds(self) -> float | None:
        """Return the time since the last beat; None without one."""
        at = self._at
        return None if at is None else time.monotonic() - at


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a role's health pages show. ``checks`` runs at each request for ``/readyz`` and must not hang."""

    role: str
    loops: tuple[Loop, ...]
    checks: Callable[[], tuple[Check, ...]]
    registry: CollectorRegistry
    #: Returns the metrics of a replica's engine on this node, None if there is none. Raises OSError or HTTPException.
    engine_metrics: Callable[[str], bytes | None] | None = None

    def liveness(self) -> tuple[bool, dict[str, object]]:
        """Return whether every loop ran in time, and a document with the age of each."""
        ages = [(loop, loop.age_seconds()) for loop in self.loops]
        alive = all(age is None or age <= loop.limit_seconds for loop, age in ages)
        return alive, {
            "role": self.role,
            "status": "alive" if alive else "wedged",
            "loops": [
                {
                    "name": loop.name,
                    "age_seconds": None if age is None else round(age, 3),
                    "limit_seconds": loop.limit_seconds,
                }
                for loop, age in ages
            ],
        }

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Return whether no dependency is missing, and a document with the state of each."""
        found = self._checked()
        missing = [check.name for check in found if check.state == "missing"]
        degraded = [check.name for check in found if check.state == "degraded"]
        return not missing, {
            "role": self.role,
            "status": "not ready" if missing else "degraded" if degraded else "ready",
            "missing": missing,
            "degraded": degraded,
            "checks": [{"name": check.name, "state": check.state, "detail": check.detail} for check in found],
        }

    def _checked(self) -> tuple[Check, ...]:
        try:
            return self.checks()
        except Exception:
            # A role whose checks fail is not ready; its other work continues.
            log.exception("the readiness of role %s cannot be told", self.role)
            return (Check(self.role, "missing", "its readiness cannot be told; see its log"),)


def registry(*collectors: Collector) -> CollectorRegistry:
    """Return the metrics of a role's ``/metrics``: those of its process, and the collectors."""
    found = CollectorRegistry()
    for collector in (ProcessCollector(registry=None), PlatformCollector(registry=None), *collectors):
        found.register(collector)
    return found


def usage_log(taken: DiskUsage) -> Check:
    """Return a check of the usage log's size. At its cap, requests are refused until the drain has shrunk the log."""
    if taken.is_full:
        return Check(
            "usage log", "degraded", f"it takes {taken.describe()}: nothing is served until the drain catches up"
        )
    if taken.is_alarming:
        return Check("usage log", "degraded", f"it takes {taken.describe()}: the drain is behind")
    return Check("usage log", "ok")


def recent(name: str, age_seconds: float | None, *, limit_seconds: float, what: str) -> Check:
    """Return a check that is ok if ``what`` happened at most ``limit_seconds`` ago. ``age_seconds`` None: never."""
    if age_seconds is None:
        return Check(name, "missing", f"no {what} yet")
    state: CheckState = "ok" if age_seconds <= limit_seconds else "missing"
    return Check(name, state, f"last {what} {age_seconds:.1f} s ago, at most {limit_seconds:g} s allowed")
