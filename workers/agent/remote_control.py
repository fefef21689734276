"""The operators' remote control commands: ``celery -A hearth inspect slots``, ``celery -A hearth control drain n1``.

The app module imports this one, because the command line does not import autodiscovered modules and would not know
the commands. Handlers run in the worker's event loop: inspect commands return what the agent last read; a verb runs
in a thread and is bounded.

Every worker answers a broadcast. Each of them performs a verb, one after the other, and only the first changes
anything. A worker with the database rights of a node leaves verbs to the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from celery.worker.control import control_command, inspect_command

from workers.fleet.verbs import MOST_WORDS, VERBS, Verb

log = logging.getLogger(__name__)

#: How long a verb may take; a verb that is not ready to commit by then is rolled back.
VERB_SECONDS = 0.6
#: When the worker answers even if the verb is still running. Celery waits one second for answers by default.
ANSWER_SECONDS = 0.7
LEFT_TO_OTHERS = "left to the workers of the first machine: this one has the database rights of a node"
NO_AGENT = "no agent runs in this worker: use -d agent@NODE, or `celery -A hearth fleet {}`"

_one_verb = threading.Lock()


@inspect_command()
def pools(state: Any, **options: Any) -> dict[str, Any]:
    """Show the pool of this agent's node, with counts of that node only."""
    return _listed("pools")


@inspect_command()
def slots(state: Any, **options: Any) -> dict[str, Any]:
    """List this node's slots, their health and their holders."""
    return _listed("slots")


@inspect_command()
def replicas(state: Any, **options: Any) -> dict[str, Any]:
    """List the replicas on this agent's node."""
    return _listed("replicas")


@inspect_command()
def placeholders(state: Any, **options: Any) -> dict[str, Any]:
    """List this node's placeholders: level, state, and how soon each can become which model."""
    return _listed("placeholders")


@inspect_command(args=[("replica", str)], signature="REPLICA_ID")
def engine_log(state: Any, replica: str = "", **options: Any) -> dict[str, Any]:
    """Show the end of the log of a replica's engines, from this agent's machine."""
    from workers.agent.agent import log_of

    try:
        text = log_of(UUID(replica))
    except ValueError:
        return {"error": f"{replica!r} is no id of a replica"}
    return {"none": "this agent has no log of it"} if text is None else {"log": text}


def _listed(what: str) -> dict[str, Any]:
    """Return what the agent of this process last read, and how long ago, without waiting."""
    from workers.agent.agent import snapshots
    from workers.fleet.status import json_rows

    found = snapshots()
    if not found:
        return {"none": NO_AGENT.format(what)}
    if any(view is None for view in found.values()):
        return {"error": f"the agent of {', '.join(sorted(found))} has not read its node yet"}
    seen = [view for view in found.values() if view is not None]
    rows = [row for view in seen for row in getattr(json_rows, what)(view.inventory)]
    return {"seen_seconds_ago": round(max(view.age_seconds for view in seen), 1), what: rows}


def _register(verb: Verb) -> None:
    # Celery's own `variadic` passes the argument before it again where no word follows.
    more = [f"more_{number}" for number in range(1, MOST_WORDS)] if verb.several else []

    def handle(state: Any, **given: Any) -> dict[str, Any]:
        deadline = time.monotonic() + VERB_SECONDS
        if verb.several and given.get(verb.arguments[-1]) is not None:
            words = [given.get(name) for name in (verb.arguments[-1], *more)]
            given[verb.arguments[-1]] = [word for word in words if word is not None]
        return _bounded(lambda: _do(verb, given, deadline))

    arguments = [(name, str) for name in (*verb.arguments, *more)]
    control_command(name=verb.name, args=arguments, signature=verb.signature, help=verb.summary)(handle)


class _TooLate(Exception):
    """The worker has stopped waiting for the verb, or is about to."""


def _do(verb: Verb, given: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Perform the verb in one transaction that commits before ``deadline`` (time.monotonic()) or is rolled back."""
    from django.db import DatabaseError, InterfaceError, connection, transaction

    from tenants.audit import Actor
    from workers.errors import WorkerError
    from workers.fleet.error_text import words

    def left_ms() -> int:
        if (left := deadline - time.monotonic()) <= 0:
            raise _TooLate
        return max(1, round(left * 1000))

    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{left_ms()}ms"])
                if not _may_change_fleet(cursor):
                    return {"skipped": LEFT_TO_OTHERS}
            effect = verb.execute(Actor(kind="system", name="celery control"), given)
            left_ms()
        return {"ok": f"{effect.target} {effect.now}", "changed": effect.changed}
    except _TooLate:
        return {"error": "the database was too slow; nothing changed"}
    except WorkerError as error:
        return {"error": words(error)}
    except (DatabaseError, InterfaceError) as error:
        return {"error": f"the database refused: {str(error).strip().partition(chr(10))[0]}"}
    except Exception as error:
        log.exception("the verb %s failed", verb.name)
        return {"error": f"{verb.name} failed, see this worker's log: {error!r}"}
    finally:
        connection.close()


def _may_change_fleet(cursor: Any) -> bool:
    """Return whether this worker's role may: for a node's role row-level security would hide the rows to change."""
    cursor.execute("SELECT has_any_column_privilege('workers_deployment', 'UPDATE')")
    return bool(cursor.fetchone()[0])


def _bounded(act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of ``act``, run in a thread of its own, or an error if it takes too long."""
    if not _one_verb.acquire(blocking=False):
        return {"error": "the database has not answered an earlier command yet; nothing changed"}
    answers: list[dict[str, Any]] = []

    def work() -> None:
        try:
            answers.append(act())
        finally:
            _one_verb.release()

    thread = threading.Thread(target=work, name="verb", daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if answers:
        return answers[0]
    return {"error": "the database is slow or unavailable; it is safe to repeat the command"}


for _verb in VERBS.values():
    _register(_verb)
