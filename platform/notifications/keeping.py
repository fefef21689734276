"""Delete events, with their deliveries, log and e-mails, that are older than KEPT_DAYS.

Events that say that money is spent stay: they are what keeps the same news from being sent again.
"""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.utils import timezone

from notifications.event_types import BALANCE_EXHAUSTED, BALANCE_LOW, BUDGET_EXHAUSTED
from notifications.models import Delivery, Event
from tenants.ids import first_id_at

#: As long as a receiver may need to notice that it missed some, and replay them.
KEPT_DAYS = 30
BATCH_ROWS = 1000
_STAYING = (BALANCE_EXHAUSTED.name, BALANCE_LOW.name, BUDGET_EXHAUSTED.name)


def delete_old() -> int:
    """Delete a batch after another; return how many events. One that is still to be sent stays.

    Nothing older than KEPT_DAYS is still to be sent: endpoints that are paused or disabled do not get it later.
    """
    now = timezone.now()
    begun = now - dt.timedelta(days=KEPT_DAYS)
    Delivery.objects.filter(state=Delivery.State.PENDING, begun_at__lt=begun).update(
        state=Delivery.State.DEAD, finished_at=now
    )
    before = first_id_at(begun)
    total = 0
    while count := _batch(before):
        total += count
    return total


@transaction.atomic
def _batch(before: object) -> int:
    old = Event.objects.filter(id__lt=before).exclude(dispatched_at=None).exclude(type__in=_STAYING)
    old = old.exclude(deliveries__state=Delivery.State.PENDING).order_by("id")
    ids = list(old.values_list("id", flat=True)[:BATCH_ROWS])
    Delivery.objects.filter(event_id__in=ids).exclude(state=Delivery.State.PENDING).delete()
    _, deleted = Event.objects.filter(id__in=ids, deliveries=None).delete()
    return deleted.get("notifications.Event", 0)
