"""Celery tasks of this room: idempotent, and safe to lose, because the next tick does the same work."""

from __future__ import annotations

from celery import shared_task

from billing.drain import batch


@shared_task(name="billing.tasks.maintain")
def maintain() -> int:
    """Rate what was waiting for a price; return how many rows."""
    return batch.rate_unrated()
