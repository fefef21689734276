"""Celery tasks of this room: short, idempotent, and safe to lose, because the next tick does the same work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from celery import current_app, shared_task
from django.db import transaction
from kombu import Producer
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from workers import metrics
from workers.scheduler import reconciler

log = logging.getLogger(__name__)

#: The task that wakes a node's agent. Only agents run it, so it is sent by name; see ``workers.agent.tasks``.
POKE = "workers.tasks.poke"
#: Agents look by themselves every second: a lost hint costs that second and nothing else.
POKE_EXPIRES_SECONDS = 5
#: Seconds that whoever waits for a verb waits for the broker.
HINT_PATIENCE = {"socket_timeout": 1, "socket_connect_timeout": 1}


@shared_task(name="workers.tasks.reconcile")
def reconcile_fleet() -> None:
    """Do one round of reconcile, then wake the agents concerned. A tick that another worker does is skipped."""
    began = time.monotonic()
    outcome = reconciler.tick()
    metrics.TICKS.count(time.monotonic() - began, lost=outcome.lost if outcome else 0)
    for node in outcome.nodes if outcome else ():
        current_app.send_task(POKE, queue=node_queue(node), expires=POKE_EXPIRES_SECONDS)


def hint(nodes: Iterable[str]) -> None:
    """Have the fleet looked at now rather than at the next tick, and the agents of ``nodes`` look, once the
    transaction commits.

    A broker that is away costs only what it would have saved: reconcile's next tick and the agents' next second.
    """
    named = tuple(nodes)
    transaction.on_commit(lambda: _send_hints(named))


def wake_control() -> None:
    """Have the fleet looked at now, from a thread of its own: a broker that is away may take its time to say so."""
    threading.Thread(target=_send_hints, args=((),), name="wake-control", daemon=True).start()


def _send_hints(nodes: tuple[str, ...]) -> None:
    """Send them over a connection of their own: the pool's would wait for a broker that is away, retry by retry."""
    if not current_app.conf.broker_write_url:
        return  # a process without Hearth's Celery app, as the supervisor that fills a new database
    try:
        with current_app.connection_for_write(transport_options=HINT_PATIENCE) as link:
            link.ensure_connection(max_retries=0)
            producer = Producer(link, auto_declare=False)
            reconcile_fleet.apply_async(queue="control", expires=POKE_EXPIRES_SECONDS, producer=producer, retry=False)
            for node in nodes:
                current_app.send_task(
                    POKE, queue=node_queue(node), expires=POKE_EXPIRES_SECONDS, producer=producer, retry=False
                )
    except (KombuError, OSError, RedisError) as error:
        log.warning("no hint was sent, the next tick does the same: %s", error)


def node_queue(node: str) -> str:
    """Return the queue that only the node's agent reads."""
    return f"node.{node}"
