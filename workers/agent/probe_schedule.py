"""Decide when an engine is probed, and run each probe in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time

from workers.agent.probes.http_probe import Prober, ProbeResult
from workers.agent.processes.engine import Engine
from workers.agent.timeouts import Timeouts
from workers.agent.wakeup import WakeEvent

log = logging.getLogger(__name__)


class ProbeSchedule:
    """Starts the probes of one node's engines; at most one per engine runs at a time."""

    def __init__(self, prober: Prober, wake_event: WakeEvent, timeouts: Timeouts) -> None:
        self._prober = prober
        self._wake_event = wake_event
        self._timeouts = timeouts

    def probe(self, state: str, engine: Engine) -> None:
        """Start a probe, unless one is running or the last one is too recent. The result is left on ``engine``."""
        timeouts, now = self._timeouts, time.monotonic()
        pause = timeouts.probe_seconds if state in {"ready", "suspect"} else timeouts.eager_probe_seconds
        if engine.probing or now - engine.probed_at < pause:
            return
        canary_timeout = self._canary_timeout(state, engine, now)
        if canary_timeout is not None:
            engine.canary_at = now
        engine.probing, engine.probed_at = True, now
        threading.Thread(target=self._run, args=(engine, canary_timeout, state), name="probe", daemon=True).start()

    def _canary_timeout(self, state: str, engine: Engine, now: float) -> float | None:
        """Return the timeout of the probe's canary, None for a probe without one."""
        if state == "warming":
            return self._timeouts.first_canary_timeout_seconds
        quiet = now - max(engine.progress_at, engine.canary_at) >= self._timeouts.quiet_seconds
        doubted = engine.health.failed_canaries > 0
        if state == "suspect" or (state == "ready" and (quiet or doubted)):
            return self._timeouts.canary_timeout_seconds
        return None

    def _run(self, engine: Engine, canary_timeout: float | None, state: str) -> None:
        try:
            result: ProbeResult | None = self._prober.probe(engine.target, canary_timeout_seconds=canary_timeout)
        except Exception:
            # The canary could not be recorded, which says nothing about the engine.
            log.exception("replica %s: the probe could not run", engine.record.replica_id)
            result = None
        engine.result = result
        engine.probing = False
        if result is not None and result.healthy == (state != "ready"):
            self._wake_event.set()  # a change: a starting or draining engine answers, or a ready one does not
