"""The health pages of the web roles, gateway and portal: their event loop, and the dependencies of their work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from prometheus_client.registry import Collector

import billing.metrics
from billing.errors import WalError, WalOverCap
from billing.wal.writer import WalWriter
from gateway import metrics
from gateway.asgi import GatewayApp
from gateway.pipeline.runtime import Runtime
from hearth.health import http_listener
from hearth.health.bounded_call import BoundedCall, database_answers
from hearth.health.checks import Check, Health, Heartbeat, Loop, registry, usage_log
from hearth.instance.health_ports import port_of
from hearth.instance.instance import from_environment

BEAT_SECONDS = 1.0
#: A round of a busy loop takes milliseconds; the longest step ever measured is a garbage collection.
LOOP_LIMIT_SECONDS = 10.0
#: The snapshot feed reads twice a second; four missed reads mean an outage.
FEED_LIMIT_SECONDS = 2.0
DATABASE_PATIENCE_SECONDS = 1.0


class GatewayHealth:
    """The health of a gateway.

    ``running`` returns its runtime, None while there is none. ``open_runtime`` creates one, or raises WalError or
    OSError.
    """

    def __init__(
        self, app: GatewayApp, running: Callable[[], Runtime | None], open_runtime: Callable[[], object]
    ) -> None:
        self._app = app
        self._running = running
        self._open = open_runtime

    def start(self) -> asyncio.Task[None]:
        """Start the heartbeats, on the running loop, and the listener. Cancel the task to end the heartbeats."""
        now = metrics.ProcessMetrics(
            in_flight=lambda: self._app.in_flight,
            snapshot_age=self._feed_age,
            redis_breaker_open=self._redis_breaker_open,
        )
        shown = (*metrics.METRICS, *billing.metrics.WRITER, now)
        return _start("gateway", self.checks, shown, self._try_to_open)

    def checks(self) -> tuple[Check, ...]:
        """Return the checks. Without a usage log or a first snapshot nothing is served.

        Without Redis or the database, the gateway serves from what it has read before.
        """
        runtime = self._running()
        if runtime is None:
            return (Check("usage log", "missing", "it cannot be opened"),)
        redis = Check("redis", "degraded", "limits are counted here, lookups find what this process stored")
        return (
            _usage_log(runtime.wal),
            self._database(),
            redis if self._redis_breaker_open() else Check("redis", "ok"),
        )

    def is_ready(self) -> bool:
        """Return whether nothing is missing that requests need, as ``/readyz`` does."""
        return all(check.state != "missing" for check in self.checks())

    def _database(self) -> Check:
        age = self._feed_age()
        if age is None:
            return Check("database", "missing", "callers, models and replicas have not been read yet")
        if age > FEED_LIMIT_SECONDS:
            return Check("database", "degraded", f"silent for {age:.0f} s; what was read before stays in force")
        return Check("database", "ok")

    def _try_to_open(self) -> None:
        """Open the runtime if that failed at start. A request would open it, but an unready gateway receives none."""
        if self._running() is None:
            with contextlib.suppress(WalError, OSError):
                self._open()

    def _feed_age(self) -> float | None:
        runtime = self._running()
        return runtime.feed.age_seconds if runtime else None

    def _redis_breaker_open(self) -> bool:
        runtime = self._running()
        return runtime is not None and any(redis.breaker_open for redis in runtime.redis)


def _usage_log(wal: WalWriter) -> Check:
    """Return a check of the usage log. A refused write means degraded, not missing.

    A full disk may have space again at the next request, which a gateway that is not ready would never receive.
    """
    if wal.failure is not None:
        return Check("usage log", "missing", wal.failure.problem)
    if wal.refusal is not None and not isinstance(wal.refusal, WalOverCap):
        return Check("usage log", "degraded", wal.refusal.problem)
    return usage_log(wal.disk_quota.usage()) if wal.disk_quota is not None else Check("usage log", "ok")


def start_portal() -> asyncio.Task[None]:
    """Start the heartbeats, on the running loop, and the listener. Cancel the task to end the heartbeats."""
    database = BoundedCall(database_answers)

    def checks() -> tuple[Check, ...]:
        if database.call(DATABASE_PATIENCE_SECONDS):
            return (Check("database", "ok"),)
        return (Check("database", "missing", f"no answer within {DATABASE_PATIENCE_SECONDS:g} s"),)

    return _start("portal", checks, ())


def _start(
    role: str,
    checks: Callable[[], tuple[Check, ...]],
    shown: tuple[Collector, ...],
    each_beat: Callable[[], None] = lambda: None,
) -> asyncio.Task[None]:
    instance = from_environment()
    heartbeat = Heartbeat()
    loop = Loop("event loop", LOOP_LIMIT_SECONDS, heartbeat.age_seconds)
    health = Health(role=role, loops=(loop,), checks=checks, registry=registry(*shown))
    http_listener.start(health, instance.metrics_host, port_of(instance, role))
    return asyncio.ensure_future(_beat(heartbeat, each_beat))


async def _beat(heartbeat: Heartbeat, each_beat: Callable[[], None]) -> None:
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_SECONDS)
        each_beat()
