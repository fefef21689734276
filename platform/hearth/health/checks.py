"""Liveness and readiness of a role: its loops, and what it depends on.

Liveness is about the process only: a role whose database is unavailable is alive, because a restart would not help.
Readiness is about dependencies: without some of them a role is degraded, without others it is not ready.
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
    """One thing a role depends on. ``missing``: it cannot do its work; ``degraded``: it can, with what it has."""

    name: str
    state: CheckState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that must come round. ``age_seconds`` is None before its first round and while it rests on purpose."""

    name: str
    limit_seconds: float
    age_seconds: Callable[[], float | None]


class Heartbeat:
    """When a loop last came round: written by the loop, read by the listener's thread."""

    def __init__(self) -> None:
        self._at: float | None = None

    def beat(self) -> None:
        """Say that the loop comes round now."""
        self._at = time.monotonic()

    def rest(self) -> None:
        """Say that the loop now waits for something on purpose, such as for a server to come back."""
        self._at = None

    def age_seconds(self) -> float | None:
        """Return the time since the last beat; None without one."""
        at = self._at
        return None if at is None else time.monotonic() - at


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a role's listener answers from. ``checks`` are asked when somebody wants to know, and may not hang."""

    role: str
    loops: tuple[Loop, ...]
    checks: Callable[[], tuple[Check, ...]]
    registry: CollectorRegistry

    def liveness(self) -> tuple[bool, dict[str, object]]:
        """Return whether every loop came round in time, and each one's age."""
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
        """Return whether nothing is missing, and what is not well."""
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
            # A role about which nothing can be said is not ready; the rest of it goes on.
            log.exception("the readiness of role %s cannot be told", self.role)
            return (Check(self.role, "missing", "its readiness cannot be told; see its log"),)


def registry(*collectors: Collector) -> CollectorRegistry:
    """Return what a role shows under ``/metrics``: its process, and the collectors."""
    found = CollectorRegistry()
    for collector in (ProcessCollector(registry=None), PlatformCollector(registry=None), *collectors):
        found.register(collector)
    return found


def usage_log(taken: DiskUsage) -> Check:
    """Return a check of how much the usage log takes; at its cap nothing new is served, until it shrinks by itself."""
    if taken.is_full:
        return Check(
            "usage log", "degraded", f"it takes {taken.describe()}: nothing is served until the drain catches up"
        )
    if taken.is_alarming:
        return Check("usage log", "degraded", f"it takes {taken.describe()}: the drain is behind")
    return Check("usage log", "ok")


def recent(name: str, age_seconds: float | None, *, limit_seconds: float, what: str) -> Check:
    """Return a check that holds while ``what`` happened at most ``limit_seconds`` ago; None: it never did."""
    if age_seconds is None:
        return Check(name, "missing", f"no {what} yet")
    state: CheckState = "ok" if age_seconds <= limit_seconds else "missing"
    return Check(name, state, f"last {what} {age_seconds:.1f} s ago, at most {limit_seconds:g} s allowed")
