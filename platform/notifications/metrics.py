"""Prometheus gauges of what waits to be sent out. The background worker exports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from notifications.models import Delivery, Event, Mail


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How many of a kind are due, and for how long the oldest is, in seconds; 0 without one."""

    number: int
    oldest_seconds: float


def read() -> Mapping[str, Waiting]:
    """Return what is due by kind. What is tried again later, because a receiver failed, is not due until then."""
    now = timezone.now()
    due = {"next_attempt_at__lte": now}
    events = Event.objects.filter(dispatched_at=None).aggregate(number=Count("id"), oldest=Min("created_at"))
    webhooks = Delivery.objects.filter(state=Delivery.State.PENDING, **due)
    mails = Mail.objects.filter(state=Mail.State.PENDING, **due)
    found = {
        "events": events,
        "webhooks": webhooks.aggregate(number=Count("id"), oldest=Min("next_attempt_at")),
        "mails": mails.aggregate(number=Count("id"), oldest=Min("next_attempt_at")),
    }
    return {
        kind: Waiting(number=each["number"], oldest_seconds=_age(each["oldest"], now)) for kind, each in found.items()
    }


def _age(oldest: datetime | None, now: datetime) -> float:
    return 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())


class WaitingCollector(Collector):
    """What waits, as the database has it. ``read`` returns None while the database is unavailable."""

    def __init__(self, read: Callable[[], Mapping[str, Waiting] | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, without a value while nothing is known."""
        number = GaugeMetricFamily(
            "hearth_notifications_due", "Events to dispatch, webhooks and e-mails to send, now.", labels=("kind",)
        )
        oldest = GaugeMetricFamily(
            "hearth_notifications_oldest_due_seconds", "Since the oldest of them was due.", labels=("kind",)
        )
        for kind, waiting in (self._read() or {}).items():
            number.add_metric((kind,), waiting.number)
            oldest.add_metric((kind,), waiting.oldest_seconds)
        yield number
        yield oldest
