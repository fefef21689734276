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
#: Data of which another value is other news about the same thing: the threshold of a budget, the step of dunning,
#: the moment that a person sent an invoice again.
_OTHER_NEWS = frozenset({"percent", "step", "sent_at"})
_COUNTED = (Mail.State.PENDING, Mail.State.SENT)

NO_SERVER = "HEARTH_EMAIL_URL is not set"
SENT_BEFORE = "one about this was sent less than a day ago"
TOO_MANY = f"more than {MOST_PER_HOUR} in an hour"


def make(event: Event) -> int:
    """Write an e-mail for each recipient of an event; return how many are to be sent."""
    people = recipients.of(event)
    theirs = {user.email.lower() for user in people}
    to: list[tuple[str, User | None]] = [(user.email, user) for user in people]
    to += [(each, None) for each in event.mail_addresses if each.lower() not in theirs]
    rows = [
        Mail(
            event=event,
            tenant_id=event.tenant_id,
            user=user,
            address=address,
            state=Mail.State.SKIPPED if reason else Mail.State.PENDING,
            note=reason,
        )
        for address, user in to
        for reason in [_why_not(event, address, user)]
    ]
    Mail.objects.bulk_create(rows, ignore_conflicts=True)
    return sum(row.state == Mail.State.PENDING for row in rows)


def _why_not(event: Event, address: str, user: User | None) -> str:
    """Return why this recipient gets no e-mail about the event; empty: they get one."""
    if not settings.EMAIL_IS_SENT:
        return NO_SERVER
    now = timezone.now()
    recent = Mail.objects.filter(user=user, state__in=_COUNTED)
    if user is None:
        recent = recent.filter(address=address)
    same = recent.filter(created_at__gt=now - QUIET, event__type=event.type, event__subject=event.subject)
    for name in _OTHER_NEWS & set(event.data):
        same = same.filter(**{f"event__data__{name}": event.data[name]})
    if same.exists():
        return SENT_BEFORE
    hourly = recent.filter(created_at__gt=now - dt.timedelta(hours=1))
    return TOO_MANY if hourly.count() >= MOST_PER_HOUR else ""
