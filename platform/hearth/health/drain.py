"""The ``drain`` role with its health pages: ``python -m hearth.health.drain``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from billing import metrics
from billing.drain import main as role
from billing.wal.disk_usage import DiskQuota
from hearth.health import http_listener
from hearth.health.bounded_call import BoundedCall, database_answers
from hearth.health.checks import Check, Health, Loop, recent, registry, usage_log
from hearth.instance.health_ports import port_of
from hearth.instance.instance import from_environment

if TYPE_CHECKING:
    from billing.drain.drain import Drain

#: A batch takes 0.25 s, and ten times as long on a busy core. While the database is unavailable the drain pauses for
#: up to 5 s.
READY_SECONDS = 15.0
#: The drain never recovers from a statement that the database never answers, so it must be restarted.
LOOP_LIMIT_SECONDS = 60.0
DATABASE_PATIENCE_SECONDS = 2.0


def watch(drain: Drain) -> None:
    """Serve the health pages of a drain that owns its folder and is about to start."""
    from django.conf import settings  # Django is set up by now, because the drain's models need it

    from billing.drain.lag_collector import LagCollector

    database = BoundedCall(database_answers)
    quota = DiskQuota(settings.WAL_DIR, settings.WAL_MAX_BYTES)

    def age_seconds() -> float | None:
        return None if drain.last_round_at is None else time.monotonic() - drain.last_round_at

    def checks() -> tuple[Check, ...]:
        owned, answers = drain.owns_directory(), database.call(DATABASE_PATIENCE_SECONDS)
        return (
            usage_log(quota.usage()) if owned else Check("usage log", "missing", "its folder is not this drain's"),
            recent("loop", age_seconds(), limit_seconds=READY_SECONDS, what="round"),
            Check("database", "ok") if answers else Check("database", "degraded", "usage waits in the log"),
        )

    instance = from_environment()
    health = Health(
        role="drain",
        loops=(Loop("drain", LOOP_LIMIT_SECONDS, age_seconds),),
        checks=checks,
        registry=registry(*metrics.DRAIN, LagCollector(drain.backlog, quota.usage)),
    )
    http_listener.start(health, instance.metrics_host, port_of(instance, "drain"))


if __name__ == "__main__":
    role.main(watch)
