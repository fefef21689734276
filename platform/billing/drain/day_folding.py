"""Fold days into daily roll-ups (``billing.ledger.daily_rollups``), while drains go on. Safe to run twice at once."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from django.db import transaction

from billing.budgets import spending
from billing.ledger import daily_rollups

#: A day is folded so long after its end, when hardly any of its rows is still to come.
LATE = timedelta(hours=24)
#: A run begins no further day after this long. The next run goes on, so that a first one of many days is no long task.
LONGEST_RUN_SECONDS = 60.0


def fold(now: datetime) -> int:
    """Fold the days that ended and are not folded, newest first; return how many."""
    count, ends = 0, time.monotonic() + LONGEST_RUN_SECONDS
    for day in daily_rollups.waiting(daily_rollups.day_of(now - LATE)):
        if time.monotonic() > ends:
            break
        daily_rollups.announce(day)
        with transaction.atomic():
            spending.exclude_batches()  # waits for those that do not know of the announcement
        count += daily_rollups.write(day)
    return count
