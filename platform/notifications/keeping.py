"""Delete events, with their deliveries, log and e-mails, that are older than KEPT_DAYS."""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.utils import timezone

from notifications.models import Delivery, Event
from tenants.ids import first_id_at

#: As long as a receiver may need to notice that it missed some, and replay them.
KEPT_DAYS = 30
BATCH_ROWS = 1000


def delete_old() -> int:
    """Delete a batch after another; return how many events. One that is still to be sent stays."""
    before = first_id_at(timezone.now() - dt.timedelta(days=KEPT_DAYS))
    total = 0
    while count := _batch(before):
        total += count
    return total


@transaction.atomic
def _batch(before: object) -> int:
    old = Event.objects.filter(id__lt=before).exclude(dispatched_at=None)
    old = old.exclude(deliveries__state=Delivery.State.PENDING).order_by("id")
    ids = list(old.values_list("id", flat=True)[:BATCH_ROWS])
    Delivery.objects.filter(event_id__in=ids).exclude(state=Delivery.State.PENDING).delete()
    _, deleted = Event.objects.filter(id__in=ids, deliveries=None).delete()
    return deleted.get("notifications.Event", 0)
