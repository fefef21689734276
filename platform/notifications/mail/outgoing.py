"""Make the e-mails of an event, within bounds that keep one bad day from filling a mailbox."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from notifications import event_types
from notifications.mail import recipients
from notifications.models import Event, Mail
from tenants.models import User

#: One e-mail of a type about one thing to one person in this time.
QUIET = dt.timedelta(days=1)
#: E-mails to one person in an hour.
MOST_PER_HOUR = 30
#: What nobody may miss: those above the limit wait for a later hour.
_NEVER_SKIPPED = frozenset(
    each.name
    for each in (
        event_types.INVOICE_FINALIZED,
        event_types.INVOICE_SENT,
        event_types.INVOICE_REMINDED,
        event_types.PAYMENT_FAILED,
        event_types.PAYMENT_SUSPENSION_BEGUN,
        event_types.PAYMENT_SUSPENSION_LIFTED,
    )
)
#: Data of which another value is other news about the same thing: the threshold of a budget, the step of dunning,
#: the moment that a person sent an invoice again, when a suspension began and ended.
_OTHER_NEWS = frozenset({"percent", "step", "sent_at", "since", "lifted_at"})
_COUNTED = (Mail.State.PENDING, Mail.State.SENT)

NO_SERVER = "HEARTH_EMAIL_URL is not set"
SENT_BEFORE = "one about this was sent less than a day ago"
TOO_MANY = f"more than {MOST_PER_HOUR} in an hour"
LATER = f"{TOO_MANY}: it waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What becomes of an e-mail: its state, why, and how long it waits."""

    state: Mail.State = Mail.State.PENDING
    note: str = ""
    wait: dt.timedelta = dt.timedelta()


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
            state=plan.state,
            note=plan.note,
            next_attempt_at=timezone.now() + plan.wait,
        )
        for address, user in to
        for plan in [_plan(event, address, user)]
    ]
    Mail.objects.bulk_create(rows, ignore_conflicts=True)
    return sum(row.state == Mail.State.PENDING for row in rows)


def _plan(event: Event, address: str, user: User | None) -> _Plan:
    """Return whether and when this recipient gets an e-mail about the event."""
    if not settings.EMAIL_IS_SENT:
        return _Plan(state=Mail.State.SKIPPED, note=NO_SERVER)
    now = timezone.now()
    recent = Mail.objects.filter(user=user, state__in=_COUNTED)
    if user is None:
        recent = recent.filter(address=address)
    same = recent.filter(created_at__gt=now - QUIET, event__type=event.type, event__subject=event.subject)
    for name in _OTHER_NEWS & set(event.data):
        same = same.filter(**{f"event__data__{name}": event.data[name]})
    if same.exists():
        return _Plan(state=Mail.State.SKIPPED, note=SENT_BEFORE)
    waiting = Q(state=Mail.State.PENDING, attempts=0, next_attempt_at__gt=now)
    hours = recent.filter(waiting | Q(created_at__gt=now - dt.timedelta(hours=1))).count() // MOST_PER_HOUR
    if not hours:
        return _Plan()
    if event.type not in _NEVER_SKIPPED:
        return _Plan(state=Mail.State.SKIPPED, note=TOO_MANY)
    return _Plan(note=LATER, wait=dt.timedelta(hours=hours))
