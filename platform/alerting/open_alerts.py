"""The alerts, for the command, the page, the API and `hearth status`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from alerting import kinds
from alerting.models import Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAlert:
    """An alert that was raised, with what to do. ``resolved_at`` None: it is open."""

    id: UUID
    kind: str
    severity: str
    about: str
    summary: str
    action: str
    raised_at: datetime
    resolved_at: datetime | None


def rows(*, is_open: bool | None = None) -> QuerySet[Alert]:
    """Return the alerts that were raised, the newest first: all, or the open or resolved ones."""
    found = Alert.objects.exclude(raised_at=None).order_by("-id")
    return found if is_open is None else found.filter(resolved_at__isnull=is_open)


def shown(alert: Alert) -> ShownAlert:
    """Return an alert as it is shown. One of a kind that a later version has keeps its name."""
    kind = kinds.BY_NAME.get(alert.kind)
    assert alert.raised_at is not None  # rows() leaves the others out
    return ShownAlert(
        id=alert.id,
        kind=alert.kind,
        severity="" if kind is None else kind.severity,
        about=alert.subject,
        summary=alert.summary,
        action="" if kind is None else kind.action,
        raised_at=alert.raised_at,
        resolved_at=alert.resolved_at,
    )


def newest(*, is_open: bool | None = None, most: int = 100) -> list[ShownAlert]:
    """Return the newest of them."""
    return [shown(alert) for alert in rows(is_open=is_open)[:most]]
