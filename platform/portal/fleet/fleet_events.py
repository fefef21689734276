"""The events of the fleet with the alerts about it, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from alerting import open_alerts
from workers.fleet.status import fleet_events
from workers.fleet.status.fleet_events import EventFilters, FleetEvent


def newest(filters: EventFilters, *, after: UUID | None, most: int) -> list[FleetEvent]:
    """Return up to ``most`` events before the id ``after``, the newest first."""
    of_fleet = fleet_events.newest(filters, after=after, most=most)
    return fleet_events.merged([*of_fleet, *_alerts(filters, most)], filters, after=after, most=most)


def _alerts(filters: EventFilters, most: int) -> Iterator[FleetEvent]:
    """Yield when alerts were raised and resolved. One is about a place if that is its subject."""
    if filters.replica or filters.kind not in {None, "alert"}:
        return
    rows = open_alerts.rows()
    if filters.is_about_places:
        rows = rows.filter(subject__in=[each for each in (filters.node, filters.pool, filters.deployment) if each])
    raised = rows.filter(raised_at__gte=filters.start, raised_at__lt=filters.end)
    for row in raised.order_by("-raised_at")[: most + 1]:
        shown = open_alerts.shown(row)
        yield FleetEvent(
            id=fleet_events.id_at(shown.raised_at, shown.id),
            at=shown.raised_at,
            kind="alert",
            what="raised",
            subject=f"{shown.kind} {shown.about}",
            reason=shown.summary,
        )
    for row in rows.filter(resolved_at__gte=filters.start, resolved_at__lt=filters.end).order_by("-resolved_at")[
        : most + 1
    ]:
        shown = open_alerts.shown(row)
        assert shown.resolved_at is not None
        yield FleetEvent(
            id=fleet_events.id_at(shown.resolved_at, shown.id),
            at=shown.resolved_at,
            kind="alert",
            what="resolved",
            subject=f"{shown.kind} {shown.about}",
            reason=shown.summary,
        )
