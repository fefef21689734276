"""Celery tasks of this room: short, idempotent, and safe to lose, because the next tick does the same work."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from celery import shared_task
from django.db import transaction
from kombu.exceptions import KombuError

from workers import reconcile, telemetry

log = logging.getLogger(__name__)

#: Agents look by themselves every second: a lost hint costs that second and nothing else.
POKE_EXPIRES_SECONDS = 5


@shared_task(name="workers.tasks.reconcile")
def reconcile_fleet() -> None:
    """Do one round of reconcile, then wake the agents concerned. A tick that another worker does is skipped."""
    began = time.monotonic()
    outcome = reconcile.tick()
    telemetry.TICKS.count(time.monotonic() - began, lost=outcome.lost if outcome else 0)
    for node in outcome.nodes if outcome else ():
        poke.apply_async(queue=node_queue(node), expires=POKE_EXPIRES_SECONDS)


@shared_task(name="workers.tasks.poke")
def poke() -> None:
    """Make the agent in this process look at once. Does nothing in a process without one."""
    from workers.agent.supervisor import wake_all

    wake_all()


def hint(nodes: Iterable[str]) -> None:
    """Have the fleet looked at now rather than at the next tick, and the agents of ``nodes`` look, once the
    transaction commits.

    A broker that is away costs only what it would have saved: reconcile's next tick and the agents' next second.
    """
    named = tuple(nodes)
    transaction.on_commit(lambda: _send_hints(named))


def _send_hints(nodes: tuple[str, ...]) -> None:
    try:
        reconcile_fleet.apply_async(queue="control", expires=POKE_EXPIRES_SECONDS, retry=False)
        for node in nodes:
            poke.apply_async(queue=node_queue(node), expires=POKE_EXPIRES_SECONDS, retry=False)
    except (KombuError, OSError) as error:
        log.warning("no hint was sent, the next tick does the same: %s", error)


def node_queue(node: str) -> str:
    """Return the queue that only the node's agent reads."""
    return f"node.{node}"
