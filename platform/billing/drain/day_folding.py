"""Fold days and half-hours (``billing.ledger.daily_rollups``), while drains go on. Safe to run twice at once."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from django.db import transaction

from billing.budgets import spending
from billing.ledger import daily_charges, daily_rollups

#: A day is folded so long after its end, when few of its rows are still to come; they have it folded again. Until then
#: reports by key or project read its roll-ups of quarters of an hour, a hundred times as many.
LATE = timedelta(hours=2)
#: A half-hour is folded so long after its end.
SETTLED = timedelta(minutes=5)
#: A run begins no further day after this long. The next run goes on, so that a first one of many days is no long task.
LONGEST_RUN_SECONDS = 60.0


def fold(now: datetime) -> int:
    """Fold the days that ended and are not folded, newest first, and sum their charges; return how many were folded."""
    count, ends = 0, time.monotonic() + LONGEST_RUN_SECONDS
    for day in daily_rollups.waiting(daily_rollups.day_of(now - LATE)):
        if time.monotonic() > ends:
            break
        daily_rollups.announce(day)
        with transaction.atomic():
            spending.exclude_batches()  # waits for those that do not know of the announcement
        count += daily_rollups.write(day)
    for day in daily_charges.waiting():
        if time.monotonic() > ends:
            break
        daily_charges.write(day)
    return count


def fold_half_hours(now: datetime) -> int:
    """Fold the half-hours that ended, of the days that are not folded yet; return how many."""
    halves = daily_rollups.waiting_half_hours(daily_rollups.day_of(now - LATE), now - SETTLED)
    if not halves:
        return 0
    daily_rollups.announce_half_hours(halves)
    with transaction.atomic():
        spending.exclude_batches()
    return sum(map(daily_rollups.write_half_hour, halves))
