"""What happened in the fleet, newest first, in one list: replicas, placeholders, slots, rollouts and scaling.

Each event has an id that begins with its time, so a page ends at an id. A placeholder's and a slot's rows have only
their last state and when it began, so that is what is listed of them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from uuid import UUID

from django.db.models import Case, QuerySet, Value, When

from tenants.ids import created_at, first_id_at
from workers.fleet.lookup import short
from workers.models import Placeholder, ReplicaEvent, Rollout, ScaleDecision, Slot

Kind = Literal["replica", "placeholder", "slot", "rollout", "scaling", "alert"]
KINDS: tuple[str, ...] = get_args(Kind)
#: Random bits of an id: an event that has no id of its own gets those of its row.
_RANDOM = (1 << 62) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """One event. ``what`` is a word such as "ready" or "promoted", ``subject`` what it happened to."""

    id: UUID
    at: dt.datetime
    kind: Kind
    what: str
    subject: str
    reason: str = ""
    node: str = ""
    pool: str = ""
    deployment: str = ""
    replica_id: UUID | None = None
    #: The end of its engine's log was stored with it.
    has_log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilters:
    """What to list; None: any. ``replica``: a replica's id or its end."""

    start: dt.datetime
    end: dt.datetime
    kind: str | None = None
    node: str | None = None
    pool: str | None = None
    deployment: str | None = None
    replica: str | None = None

    @property
    def is_about_places(self) -> bool:
        """Whether a node, a pool, a deployment or a replica was chosen."""
        return any((self.node, self.pool, self.deployment, self.replica))


def newest(filters: EventFilters, *, after: UUID | None, most: int) -> list[FleetEvent]:
    """Return up to ``most`` events before the id ``after``, the newest first. Alerts are not among them."""
    end = filters.end if after is None else min(filters.end, created_at(after) + dt.timedelta(milliseconds=1))
    sources = (_replicas, _placeholders, _slots, _rollouts, _decisions)
    found = [event for source in sources for event in source(filters, end, most + 1)]
    return merged(found, filters, after=after, most=most)


def merged(events: Iterable[FleetEvent], filters: EventFilters, *, after: UUID | None, most: int) -> list[FleetEvent]:
    """Return the newest of these events of the chosen kind, before the id ``after``."""
    kept = [
        event
        for event in events
        if (after is None or event.id < after) and (filters.kind is None or event.kind == filters.kind)
    ]
    return sorted(kept, key=lambda event: event.id, reverse=True)[:most]


def id_at(moment: dt.datetime, row_id: UUID) -> UUID:
    """Return the id of an event of a row at a moment."""
    return UUID(int=first_id_at(moment).int | (row_id.int & _RANDOM))


def _replicas(filters: EventFilters, end: dt.datetime, most: int) -> Iterator[FleetEvent]:
    rows = ReplicaEvent.objects.filter(**_named(filters, "replica__"), **_ids(filters, end))
    if filters.replica:
        rows = _ending(rows, "replica_id", filters.replica)
    has_log = Case(When(log_tail="", then=Value(False)), default=Value(True))
    rows = rows.select_related("replica__deployment", "replica__node__pool").defer("log_tail")
    for row in _newest(rows.annotate(has_log=has_log), filters, "replica", most):
        node = row.replica.node
        yield FleetEvent(
            id=row.id,
            at=row.created_at,
            kind="replica",
            what=row.to_state,
            subject=f"{row.replica.deployment.name}/{short(row.replica_id)}",
            reason=row.reason,
            node=node.name if node else "",
            pool=node.pool.name if node else "",
            deployment=row.replica.deployment.name,
            replica_id=row.replica_id,
            has_log=row.has_log,
        )


def _placeholders(filters: EventFilters, end: dt.datetime, most: int) -> Iterator[FleetEvent]:
    if filters.replica:
        return
    rows = Placeholder.objects.filter(
        **_named(filters, ""), state_since__gte=filters.start, state_since__lt=end
    ).select_related("node__pool", "deployment")
    for row in _newest(rows, filters, "placeholder", most, "-state_since"):
        yield FleetEvent(
            id=id_at(row.state_since, row.id),
            at=row.state_since,
            kind="placeholder",
            what=row.state,
            subject=f"placeholder {short(row.id)}",
            reason=row.reason,
            node=row.node.name,
            pool=row.node.pool.name,
            deployment=row.deployment.name if row.deployment else "",
        )


def _slots(filters: EventFilters, end: dt.datetime, most: int) -> Iterator[FleetEvent]:
    if filters.replica or filters.deployment:
        return
    rows = Slot.objects.filter(
        **_named(filters, "", of_deployments=False), quarantined_at__gte=filters.start, quarantined_at__lt=end
    ).select_related("node__pool")
    for row in _newest(rows, filters, "slot", most, "-quarantined_at"):
        assert row.quarantined_at is not None
        yield FleetEvent(
            id=id_at(row.quarantined_at, row.id),
            at=row.quarantined_at,
            kind="slot",
            what="quarantined",
            subject=f"slot {row.index} of {row.node.name}",
            reason=row.fault or "restored since",
            node=row.node.name,
            pool=row.node.pool.name,
        )


def _rollouts(filters: EventFilters, end: dt.datetime, most: int) -> Iterator[FleetEvent]:
    if filters.replica or filters.node or filters.pool:
        return
    chosen = {"deployment__name": filters.deployment} if filters.deployment else {}
    begun = Rollout.objects.filter(**chosen, started_at__gte=filters.start, started_at__lt=end)
    for row in _newest(begun.select_related("deployment"), filters, "rollout", most, "-started_at"):
        yield _rollout(row, row.started_at, "started", f"by {row.started_by}" if row.started_by else "")
    over = Rollout.objects.filter(**chosen, finished_at__gte=filters.start, finished_at__lt=end)
    for row in _newest(over.select_related("deployment"), filters, "rollout", most, "-finished_at"):
        assert row.finished_at is not None
        yield _rollout(row, row.finished_at, row.state, row.reason)


def _rollout(row: Rollout, at: dt.datetime, what: str, reason: str) -> FleetEvent:
    name = row.deployment.name
    return FleetEvent(
        id=id_at(at, row.id),
        at=at,
        kind="rollout",
        what=what,
        subject=f"rollout of {name}",
        reason=reason,
        deployment=name,
    )


def _decisions(filters: EventFilters, end: dt.datetime, most: int) -> Iterator[FleetEvent]:
    if filters.replica or filters.node:
        return
    chosen = {"deployment__name": filters.deployment, "pool__name": filters.pool}
    rows = ScaleDecision.objects.filter(
        **{name: value for name, value in chosen.items() if value}, **_ids(filters, end)
    ).select_related("deployment", "pool")
    for row in _newest(rows, filters, "scaling", most):
        yield FleetEvent(
            id=row.id,
            at=row.created_at,
            kind="scaling",
            what=row.action,
            subject=f"{row.deployment.name}: {row.from_replicas} → {row.to_replicas} replicas",
            reason=row.reason,
            pool=row.pool.name if row.pool else "",
            deployment=row.deployment.name,
        )


def _named(filters: EventFilters, prefix: str, *, of_deployments: bool = True) -> dict[str, str]:
    """Return the conditions for the names of places, of rows that reach their node by ``prefix``."""
    chosen = {f"{prefix}node__name": filters.node, f"{prefix}node__pool__name": filters.pool}
    if of_deployments:
        chosen[f"{prefix}deployment__name"] = filters.deployment
    return {name: value for name, value in chosen.items() if value}


def _ids(filters: EventFilters, end: dt.datetime) -> dict[str, UUID]:
    return {"id__gte": first_id_at(filters.start), "id__lt": first_id_at(end)}


def _newest(rows: QuerySet[Any], filters: EventFilters, kind: Kind, most: int, order: str = "-id") -> Sequence[Any]:
    return list(rows.order_by(order, "-id")[:most]) if filters.kind in {None, kind} else ()


def _ending(rows: QuerySet[Any], column: str, text: str) -> QuerySet[Any]:
    """Return the rows whose id is this or ends so."""
    try:
        return rows.filter(**{column: UUID(text)})
    except ValueError:
        return rows.extra(where=[f"{column}::text LIKE %s"], params=[f"%{text}"])
