"""The Celery task of reconciliation: idempotent, and safe to lose, because the next one does the same work."""

from __future__ import annotations

import datetime as dt

from celery import shared_task

from reconciliation import run

#: Shorter than the hour between two ticks, so that a late tick is followed by one in time.
PERIOD = dt.timedelta(minutes=50)


@shared_task(name="reconciliation.tasks.compare")
def compare() -> int:
    """Compare engines, usage and books; return how many gaps there are."""
    done = run.hourly(PERIOD)
    return done.boot_gaps + done.book_gaps if done is not None else 0
