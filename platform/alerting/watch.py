"""Compare what is wrong now with the alerts there are: each is raised once, and resolved once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from alerting import kinds
from alerting.checks import CHECKS, Problem
from alerting.kinds import Kind
from alerting.models import Alert
from notifications import outbox
from notifications.event_types import ALERT_RAISED, ALERT_RESOLVED, EventType

log = logging.getLogger(__name__)

#: A problem that returns within this time counts as never gone, so that one that comes and goes raises one alert.
GONE_AFTER = timedelta(minutes=2)
#: The machine that saw it has not looked since.
FORGOTTEN_AFTER = timedelta(hours=1)
KEPT = timedelta(days=30)
#: Of one kind at once: more nodes than a person looks at one by one.
MOST_OF_A_KIND = 100
#: The advisory lock of a run: "alert" in ASCII.
_LOCK = 0x616C657274


def run(now: datetime | None = None) -> int:
    """Look at everything once; return how many alerts are open. A check that fails leaves its alerts as they are."""
    moment = now or timezone.now()
    for name, check in CHECKS.items():
        try:
            found = {problem.subject: problem for problem in reversed(list(check()))}
            _compare(kinds.BY_NAME[name], list(found.values())[:MOST_OF_A_KIND], moment)
        except (DatabaseError, OSError):
            log.exception("the alerts of the kind %s could not be computed", name)
    Alert.objects.filter(resolved_at__lt=moment - KEPT).delete()
    return Alert.objects.filter(resolved_at=None).exclude(raised_at=None).count()


@transaction.atomic
def _compare(kind: Kind, problems: Iterable[Problem], now: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    known = {alert.subject: alert for alert in Alert.objects.filter(kind=kind.name, resolved_at=None)}
    for problem in problems:
        alert = known.pop(problem.subject, None)
        if alert is None:
            alert = Alert(kind=kind.name, subject=problem.subject, first_seen_at=now)
        alert.summary, alert.host, alert.last_seen_at = problem.summary[:500], problem.host, now
        if alert.raised_at is None and now - alert.first_seen_at >= kind.patience:
            alert.raised_at = now
            _emit(ALERT_RAISED, kind, alert)
        alert.save()
    for alert in known.values():
        is_ours = alert.host in {"", settings.NODE_NAME}
        if now - alert.last_seen_at < (GONE_AFTER if is_ours else FORGOTTEN_AFTER):
            continue
        if alert.raised_at is None:
            alert.delete()
            continue
        alert.resolved_at = now
        alert.save(update_fields=["resolved_at"])
        _emit(ALERT_RESOLVED, kind, alert)


def _emit(event_type: EventType, kind: Kind, alert: Alert) -> None:
    outbox.emit(
        event_type,
        # The same each time that the problem comes back, so that e-mails about it are bounded.
        subject=(f"alert/{kind.name}", alert.subject),
        data={
            "alert": str(alert.id),
            "kind": kind.name,
            "about": alert.subject,
            "summary": alert.summary,
            "severity": kind.severity,
            "action": kind.action,
            "raised_at": alert.raised_at.isoformat() if alert.raised_at is not None else None,
        },
        dedupe_key=str(alert.id),
    )
