"""The replicas as lists show them: what each does, on which node, and how its start went."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet

from workers.fleet.lookup import short
from workers.fleet.status.history import Transition
from workers.fleet.status.placeholders import STATE_AGE, age_seconds
from workers.models import Replica, SlotLease
from workers.scheduler.reconciler import ENDED
from workers.serving.start_times import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One engine. ``leaving`` means that it stops once its replacement is ready."""

    id: UUID
    deployment: str
    model: str
    node: str | None
    state: str
    since: dt.datetime
    #: Time in this state, by the database's clock.
    state_seconds: float
    wanted: bool
    leaving: bool
    #: What its rollout's canary found: ``""`` where it needs none; only "" and "passed" get requests.
    canary: str
    running_requests: int
    waiting_requests: int
    #: 0 to 1.
    kv_usage: float
    #: Means of the last minute, as its engine says; the last one is a share, 0 to 1.
    ttft_seconds: float | None
    tpot_seconds: float | None
    prefix_hit_share: float | None
    #: Tokens that its KV cache holds.
    cache_tokens: int | None
    #: Tokens that it keeps in host memory.
    host_cache_tokens: int | None
    #: Requests that its engine runs at once.
    max_requests: int | None
    #: Its longest prompt and completion together.
    context_tokens: int | None
    #: Level it was started from, empty until that is known; and why not from a warmer one.
    start_level: str
    start_note: str
    startup_seconds: float | None
    #: Parts of its last start.
    start_parts: Parts
    #: The placeholder it was promoted from.
    placeholder: UUID | None
    generation: int
    port: int | None
    attempts: int
    next_attempt_at: dt.datetime | None
    drain_deadline: dt.datetime | None
    last_error: str
    transitions: tuple[Transition, ...]

    @property
    def name(self) -> str:
        """Return its deployment and the end of its id, as lists show it."""
        return f"{self.deployment}/{short(self.id)}"

    @property
    def running(self) -> bool:
        """Return whether it has or will have a process."""
        return self.state not in ENDED


def replica_rows(on_node: Q) -> QuerySet[Replica]:
    """Return the replicas that chosen nodes have, oldest first, without those that ended and hold no slot."""
    over = Q(desired_state=Replica.Desired.STOPPED, state__in=ENDED) & ~holds_slot("replica")
    rows = Replica.objects.filter(on_node).exclude(over).select_related("deployment", "revision__model", "node")
    return rows.annotate(age=STATE_AGE).order_by("id")


def holds_slot(holder: str) -> Exists:
    """Return whether a ``replica`` or ``placeholder`` row has an open lease."""
    return Exists(SlotLease.objects.filter(**{holder: OuterRef("pk")}, released_at=None))


def replica_status(row: Replica, transitions: Sequence[Transition], parts: Parts) -> ReplicaStatus:
    """Return the status of a row of :func:`replica_rows`."""
    return ReplicaStatus(
        id=row.id,
        deployment=row.deployment.name,
        model=row.revision.model.name,
        node=row.node.name if row.node else None,
        state=row.state,
        since=row.state_since,
        state_seconds=age_seconds(row),
        wanted=row.desired_state == Replica.Desired.RUNNING,
        leaving=row.leaving,
        canary=row.canary,
        running_requests=row.running_requests,
        waiting_requests=row.waiting_requests,
        kv_usage=row.kv_usage,
        ttft_seconds=row.ttft_seconds,
        tpot_seconds=row.tpot_seconds,
        prefix_hit_share=row.prefix_hit_share,
        cache_tokens=row.cache_tokens,
        host_cache_tokens=row.host_cache_tokens,
        max_requests=row.max_requests,
        context_tokens=row.context_tokens,
        start_level=row.start_level,
        start_note=row.start_note,
        startup_seconds=row.startup_seconds,
        start_parts=parts,
        placeholder=row.placeholder_id,
        generation=row.generation,
        port=row.port,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        drain_deadline=row.drain_deadline,
        last_error=row.last_error,
        transitions=tuple(transitions),
    )
