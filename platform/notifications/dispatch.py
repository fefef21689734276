"""Turn events into what is sent: a delivery for each webhook endpoint that wants one, and e-mails by role."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from notifications.mail import outgoing
from notifications.models import Event
from notifications.webhooks import deliveries

BATCH = 100


def run() -> int:
    """Dispatch every event that is not dispatched yet; return how many. Processes that run it at once share them."""
    total = 0
    while count := _batch():
        total += count
    return total


@transaction.atomic
def _batch() -> int:
    waiting = Event.objects.filter(dispatched_at=None).select_related("tenant").order_by("id")
    events = list(waiting.select_for_update(skip_locked=True, of=("self",))[:BATCH])
    for event in events:
        deliveries.make(event)
        outgoing.make(event)
    Event.objects.filter(id__in=[event.id for event in events]).update(dispatched_at=timezone.now())
    return len(events)
