"""Make the e-mails of an event, within bounds that keep one bad day from filling a mailbox."""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from django.utils import timezone

from notifications.mail import recipients
from notifications.models import Event, Mail
from tenants.models import User

#: One e-mail of a type about one thing to one person in this time.
QUIET = dt.timedelta(days=1)
#: E-mails to one person in an hour.
MOST_PER_HOUR = 30
_COUNTED = (Mail.State.PENDING, Mail.State.SENT)

NO_SERVER = "HEARTH_EMAIL_URL is not set"
SENT_BEFORE = "one about this was sent less than a day ago"
TOO_MANY = f"more than {MOST_PER_HOUR} in an hour"


def make(event: Event) -> int:
    """Write an e-mail for each recipient of an event; return how many are to be sent."""
    rows = [
        Mail(
            event=event,
            tenant_id=event.tenant_id,
            user=user,
            address=user.email,
            state=Mail.State.SKIPPED if reason else Mail.State.PENDING,
            note=reason,
        )
        for user in recipients.of(event)
        for reason in [_why_not(event, user)]
    ]
    Mail.objects.bulk_create(rows, ignore_conflicts=True)
    return sum(row.state == Mail.State.PENDING for row in rows)


def _why_not(event: Event, user: User) -> str:
    """Return why this person gets no e-mail about the event; empty: they get one."""
    if not settings.EMAIL_IS_SENT:
        return NO_SERVER
    now = timezone.now()
    recent = Mail.objects.filter(user=user, state__in=_COUNTED)
    same = recent.filter(created_at__gt=now - QUIET, event__type=event.type, event__subject=event.subject)
    if "percent" in event.data:  # another threshold of a budget is other news
        same = same.filter(event__data__percent=event.data["percent"])
    if same.exists():
        return SENT_BEFORE
    hourly = recent.filter(created_at__gt=now - dt.timedelta(hours=1))
    return TOO_MANY if hourly.count() >= MOST_PER_HOUR else ""
