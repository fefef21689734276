"""What an agent writes of engine processes: their start, their counters at each scrape, and how they ended.

``NodeRows`` calls these inside its own transactions, in which the node is owned.
"""

from __future__ import annotations

import datetime as dt
from uuid import UUID

from django.db.models.functions import Now

from workers.agent.probes.http_probe import EngineLoad
from workers.models import EngineBoot
from workers.models.boots import OPEN

#: How old ``counted_at`` may get while nothing is counted.
UNCHANGED = dt.timedelta(seconds=30)


def begin(replica_id: UUID, generation: int) -> None:
    """Record that a process is about to be started. All before it have ended."""
    end(replica_id, EngineBoot.End.KILLED)
    EngineBoot.objects.create(replica_id=replica_id, generation=generation)


def count(replica_id: UUID, generation: int, load: EngineLoad) -> None:
    """Write what the engine has counted until now; nothing once its end is written.

    Counters that are as they were are written every UNCHANGED: an idle engine would otherwise have a new version of its
    row at each scrape. A process that an agent of an earlier release started has no row yet.
    """
    values = {
        "prompt_tokens": load.counters.prompt_tokens,
        "cached_prompt_tokens": load.counters.cached_prompt_tokens,
        "completion_tokens": load.counters.completion_tokens,
        "finished_sequences": load.counters.finished_sequences,
        "open_sequences": load.running + load.waiting,
    }
    boots = EngineBoot.objects.filter(replica_id=replica_id, generation=generation)
    changed = boots.filter(OPEN).exclude(counted_at__gt=Now() - UNCHANGED, **values)
    if not changed.update(counted_at=Now(), **values) and not boots.exists():
        EngineBoot.objects.create(replica_id=replica_id, generation=generation, whole=False, counted_at=Now(), **values)


def end(replica_id: UUID, how: EngineBoot.End) -> None:
    """Write the end of the replica's process, if it has no end yet."""
    EngineBoot.objects.filter(OPEN, replica_id=replica_id).update(ended_at=Now(), end=how)
