"""The reconciler's Celery task, and hints that wake it early. Losing one is safe: the next tick does the same work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from celery import current_app, shared_task
from django.db import transaction
from django.utils import timezone
from kombu import Producer
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from workers import metrics
from workers.scheduler import node_certificates, reconciler
from workers.serving import reserved_hours

log = logging.getLogger(__name__)

#: The task that wakes a node's agent. Only agents run it, so it is sent by name; see ``workers.agent.tasks``.
POKE = "workers.tasks.poke"
#: Agents run a round every second anyway, so a lost hint costs only that second.
POKE_EXPIRES_SECONDS = 5
#: How long a verb waits for the broker, in seconds.
HINT_TIMEOUTS = {"socket_timeout": 1, "socket_connect_timeout": 1}


@shared_task(name="workers.tasks.reconcile")
def reconcile_fleet() -> None:
    """Run one tick of the reconciler and wake the agents concerned. Skip it while another worker runs one."""
    began = time.monotonic()
    outcome = reconciler.tick()
    metrics.TICKS.count(time.monotonic() - began, lost=outcome.lost if outcome else 0)
    node_certificates.sign_due()
    for node in outcome.nodes if outcome else ():
        current_app.send_task(POKE, queue=node_queue(node), expires=POKE_EXPIRES_SECONDS)


@shared_task(name="workers.tasks.measure_reserved")
def measure_reserved() -> int:
    """Store how far reserved slots were available in hours that are over; return how many hours."""
    return reserved_hours.measure(timezone.now())


def hint(nodes: Iterable[str]) -> None:
    """Wake the reconciler and the agents of ``nodes`` once the transaction commits.

    If the broker is unavailable, the reconciler's next tick and the agents' next round do the same.
    """
    named = tuple(nodes)
    transaction.on_commit(lambda: _send_hints(named))


def wake_control() -> None:
    """Wake the reconciler from a separate thread, because an unavailable broker may take long to fail."""
    threading.Thread(target=_send_hints, args=((),), name="wake-control", daemon=True).start()


def _send_hints(nodes: tuple[str, ...]) -> None:
    """Send the hints over a separate connection: one of the pool would retry while the broker is unavailable."""
    if not current_app.conf.broker_write_url:
        return  # a process without Hearth's Celery app, such as the supervisor that fills a new database
    try:
        with current_app.connection_for_write(transport_options=HINT_TIMEOUTS) as link:
            link.ensure_connection(max_retries=0)
            producer = Producer(link, auto_declare=False)
            reconcile_fleet.apply_async(queue="control", expires=POKE_EXPIRES_SECONDS, producer=producer, retry=False)
            for node in nodes:
                current_app.send_task(
                    POKE, queue=node_queue(node), expires=POKE_EXPIRES_SECONDS, producer=producer, retry=False
                )
    except (KombuError, OSError, RedisError) as error:
        log.warning("no hint was sent; the next tick does the same work: %s", error)


def node_queue(node: str) -> str:
    """Return the queue that only the node's agent reads."""
    return f"node.{node}"
