"""The log of a replica's engines, from whichever node: its agent reads it, or the event of a failure has its end.

An agent is asked over the broker, as ``celery inspect engine_log`` does. Nothing else is needed for a further node, and
a node that is gone leaves what its agents stored with the events.
"""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import dataclass
from uuid import UUID

from celery import current_app
from django.utils import timezone
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from workers.models import Replica, ReplicaEvent

log = logging.getLogger(__name__)

#: How long an agent is waited for.
AGENT_SECONDS = 1.5
#: Lines that are shown unless others are chosen, and at most.
LINES = 200
MOST_LINES = 1000
#: Failures of one replica whose logs are listed.
MOST_FAILURES = 20
_TIMEOUTS = {"socket_timeout": 1 + AGENT_SECONDS, "socket_connect_timeout": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLog:
    """The end of a log, and when it was so. ``event_id``: it was stored with this event; None: read just now."""

    text: str
    at: dt.datetime
    event_id: UUID | None = None
    #: Why the agent's machine was not read; empty if it was, or if it was not asked.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An event with the log of the engine that failed."""

    event_id: UUID
    at: dt.datetime
    reason: str


def read(replica: Replica) -> EngineLog:
    """Return the log as it is on the replica's node; without an answer, what was stored last, which may be nothing."""
    text, problem = _from_agent(replica)
    if text is not None:
        return EngineLog(text=text, at=timezone.now())
    stored = ReplicaEvent.objects.filter(replica=replica).exclude(log_tail="").order_by("-id").first()
    if stored is None:
        return EngineLog(text="", at=timezone.now(), problem=problem)
    return EngineLog(text=stored.log_tail, at=stored.created_at, event_id=stored.id, problem=problem)


def stored(replica: Replica, event_id: UUID) -> EngineLog | None:
    """Return the log that was stored with an event of the replica; None if there is none."""
    event = ReplicaEvent.objects.filter(replica=replica, id=event_id).exclude(log_tail="").first()
    return None if event is None else EngineLog(text=event.log_tail, at=event.created_at, event_id=event.id)


def failures(replica: Replica) -> list[Failure]:
    """Return the newest events with a log, the newest first."""
    rows = ReplicaEvent.objects.filter(replica=replica).exclude(log_tail="").defer("log_tail").order_by("-id")
    return [Failure(event_id=row.id, at=row.created_at, reason=row.reason) for row in rows[:MOST_FAILURES]]


def _from_agent(replica: Replica) -> tuple[str | None, str]:
    """Return the log that the node's agent reads, or None and why there is none."""
    if replica.node is None:
        return None, "it was never placed on a node"
    if not current_app.conf.broker_write_url:
        return None, "there is no broker"
    worker = f"agent@{replica.node.name}"
    try:
        with current_app.connection_for_write(transport_options=_TIMEOUTS) as link:
            link.ensure_connection(max_retries=0)
            answers = current_app.control.broadcast(
                "engine_log",
                arguments={"replica": str(replica.id)},
                destination=[worker],
                connection=link,
                reply=True,
                timeout=AGENT_SECONDS,
                limit=1,
            )
    except (KombuError, OSError, RedisError) as error:
        log.warning("no agent could be asked for a log: %s", error)
        return None, "the broker is unavailable"
    answer = next((each[worker] for each in answers or () if worker in each), None)
    if answer is None:
        return None, f"the agent of {replica.node.name} does not answer"
    text = answer.get("log")
    return (text, "") if isinstance(text, str) else (None, f"{replica.node.name} has no log of it")
