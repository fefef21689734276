"""Celery tasks of billing: idempotent, and safe to lose, because the next tick does the same work."""

from __future__ import annotations

from celery import shared_task

from billing.drain import batch


@shared_task(name="billing.tasks.maintain")
def maintain() -> int:
    """Rate rows that waited for a price; return how many."""
    return batch.rate_unrated()
