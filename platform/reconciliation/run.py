"""Compare everything once: engines with usage, usage with the ledger and roll-ups, those with months and invoices."""

from __future__ import annotations

import datetime as dt
import logging

from django.db import connection, transaction
from django.db.models import Sum
from django.utils import timezone

from reconciliation import books, boots, closed_months, invoices, ledger
from reconciliation.models import BookGap, BootResult, Comparison

log = logging.getLogger(__name__)

#: Number of the advisory lock: "recon" in ASCII.
_LOCK = int.from_bytes(b"recon")
#: As many comparisons are kept: six weeks of hours.
KEPT = 1000


def compare(*, settle: dt.timedelta = boots.SETTLE, since: dt.datetime | None = None) -> Comparison:
    """Compare and keep the result. Idempotent; two at once wait for each other where they would write the same."""
    return _finish(Comparison.objects.create(), settle, since)


def hourly(period: dt.timedelta) -> Comparison | None:
    """Compare, unless a process began to do so in this period."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        if Comparison.objects.filter(started_at__gt=timezone.now() - period).exists():
            return None
        begun = Comparison.objects.create()
    return _finish(begun, boots.SETTLE, None)


def _finish(begun: Comparison, settle: dt.timedelta, since: dt.datetime | None) -> Comparison:
    begun.boots = boots.compare(settle=settle, since=since)
    now = timezone.now()
    begun.books = books.compare(now, since) + closed_months.compare(now, since) + invoices.compare(now, since)
    ledger.compare(now, since or books.first_month(now).begin)
    gaps = list(BootResult.objects.filter(state=BootResult.State.GAP).values_list("gap_tokens", flat=True))
    begun.boot_gaps, begun.gap_tokens = len(gaps), sum(map(abs, gaps))
    begun.lost_tokens = BootResult.objects.aggregate(total=Sum("lost_tokens", default=0))["total"]
    begun.book_gaps = BookGap.objects.count()
    begun.finished_at = timezone.now()
    begun.save()
    Comparison.objects.filter(id__lte=begun.id - KEPT).delete()
    if begun.boot_gaps or begun.book_gaps:
        log.error("usage does not agree: %d engine processes, %d sums of the books", begun.boot_gaps, begun.book_gaps)
    return begun
