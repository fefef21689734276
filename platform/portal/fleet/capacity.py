"""What has a slot, or waits for one, as pages and API show it: replicas, placeholders, free and broken slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from workers.models import Placeholder, Replica, ReplicaEvent, Slot
from workers.serving.start_times import Summaries, expected_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """One transition."""

    at: datetime
    from_state: str
    to_state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One engine. ``leaving`` means that it stops once its replacement serves."""

    id: UUID
    deployment: str
    model: str
    node: str | None
    state: str
    since: datetime
    wanted: bool
    leaving: bool
    running_requests: int
    waiting_requests: int
    #: 0 to 1.
    kv_usage: float
    #: How warm it was started from, empty while that is open; and why not from warmer.
    start_level: str
    start_note: str
    startup_seconds: float | None
    #: The placeholder it was promoted from.
    placeholder: UUID | None
    generation: int
    port: int | None
    attempts: int
    next_attempt_at: datetime | None
    drain_deadline: datetime | None
    last_error: str
    events: tuple[EventStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderStatus:
    """Warm capacity. ``level`` is how warm it is now; ``deployment`` whom it was warmed for."""

    id: UUID
    node: str
    deployment: str | None
    engine: str
    target_level: str
    level: str
    state: str
    since: datetime
    reason: str
    memory_bytes: int | None
    warm_seconds: float | None
    #: Usual seconds until a replica started from it answers; None while no such start was measured.
    expected_seconds: float | None

    @property
    def evictable(self) -> bool:
        """True while it has its slot."""
        return self.state in (Placeholder.State.REQUESTED, Placeholder.State.WARMING, Placeholder.State.WARM)

    @property
    def promotable(self) -> bool:
        """True while there is a warm process that can become a replica."""
        return (self.state, self.level) == (Placeholder.State.WARM, "h2")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """A place for one engine rank."""

    id: UUID
    index: int
    device_uuid: str
    memory_bytes: int | None
    health: str
    fault: str

    @property
    def healthy(self) -> bool:
        """True while it may be given to something."""
        return self.health == Slot.Health.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One or more slots of a node and what has them; a replica of several slots has one place.

    ``slots`` is empty for a replica that has none: it has ended and was not replaced yet.
    """

    kind: Literal["replica", "placeholder", "free", "quarantined", "gone"]
    slots: tuple[SlotStatus, ...]
    replica: ReplicaStatus | None = None
    placeholder: PlaceholderStatus | None = None

    @property
    def label(self) -> str:
        """The numbers of its slots."""
        if not self.slots:
            return "no slot"
        numbers = ", ".join(str(slot.index) for slot in self.slots)
        return f"slot {numbers}" if len(self.slots) == 1 else f"slots {numbers}"

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with its slots, one entry for each that is not well."""
        return tuple(slot.fault or slot.health for slot in self.slots if not slot.healthy)


def event_of(row: ReplicaEvent) -> EventStatus:
    """Return the event as it is shown."""
    return EventStatus(at=row.created_at, from_state=row.from_state, to_state=row.to_state, reason=row.reason)


def replica_of(row: Replica, events: Sequence[EventStatus]) -> ReplicaStatus:
    """Return the replica as it is shown; its deployment, revision, model and node are read with it."""
    return ReplicaStatus(
        id=row.id,
        deployment=row.deployment.name,
        model=row.revision.model.name,
        node=row.node.name if row.node else None,
        state=row.state,
        since=row.state_since,
        wanted=row.desired_state == Replica.Desired.RUNNING,
        leaving=row.leaving,
        running_requests=row.running_requests,
        waiting_requests=row.waiting_requests,
        kv_usage=row.kv_usage,
        start_level=row.start_level,
        start_note=row.start_note,
        startup_seconds=row.startup_seconds,
        placeholder=row.placeholder_id,
        generation=row.generation,
        port=row.port,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        drain_deadline=row.drain_deadline,
        last_error=row.last_error,
        events=tuple(events),
    )


def placeholder_of(row: Placeholder, measured: Summaries) -> PlaceholderStatus:
    """Return the placeholder as it is shown; its deployment and node are read with it."""
    starts = measured.get(row.deployment.revision_id, ()) if row.deployment else ()
    # one that is still warming will be as warm as it is meant to be when it is of use
    level = row.level if row.state == Placeholder.State.WARM else row.target_level
    return PlaceholderStatus(
        id=row.id,
        node=row.node.name,
        deployment=row.deployment.name if row.deployment else None,
        engine=row.engine,
        target_level=row.target_level,
        level=row.level,
        state=row.state,
        since=row.state_since,
        reason=row.reason,
        memory_bytes=row.memory_bytes,
        warm_seconds=row.warm_seconds,
        expected_seconds=expected_seconds(starts, level),
    )


def slot_of(row: Slot) -> SlotStatus:
    """Return the slot as it is shown."""
    return SlotStatus(
        id=row.id,
        index=row.index,
        device_uuid=row.device_uuid,
        memory_bytes=row.memory_bytes,
        health=row.health,
        fault=row.fault,
    )


def places(
    slots: Sequence[SlotStatus],
    holders: Mapping[UUID, UUID],
    replicas: Mapping[UUID, ReplicaStatus],
    placeholders: Mapping[UUID, PlaceholderStatus],
) -> tuple[Place, ...]:
    """Return the places of a node in the order of its slots, then its replicas without one.

    ``holders`` names the replica or placeholder with an open lease, by slot; the other two are those of the node.
    """
    shown: dict[UUID, Place] = {}
    for slot in sorted(slots, key=lambda slot: slot.index):
        holder = holders.get(slot.id)
        if holder in replicas or holder in placeholders:
            assert holder is not None
            gang = (*shown[holder].slots, slot) if holder in shown else (slot,)
            kind: Literal["replica", "placeholder"] = "replica" if holder in replicas else "placeholder"
            replica, placeholder = replicas.get(holder), placeholders.get(holder)
            shown[holder] = Place(kind=kind, slots=gang, replica=replica, placeholder=placeholder)
        else:
            shown[slot.id] = Place(kind=_empty(slot), slots=(slot,))
    without = [Place(kind="replica", slots=(), replica=each) for each in replicas.values() if each.id not in shown]
    return (*shown.values(), *without)


def _empty(slot: SlotStatus) -> Literal["free", "quarantined", "gone"]:
    if slot.healthy:
        return "free"
    return "gone" if slot.health == Slot.Health.GONE else "quarantined"
