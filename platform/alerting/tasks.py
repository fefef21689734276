"""The Celery task of alerting: idempotent, and safe to lose, because the next tick looks at everything again."""

from __future__ import annotations

from celery import shared_task

from alerting import watch as watching


@shared_task(name="alerting.tasks.watch")
def watch() -> int:
    """Raise and resolve alerts; return how many are open."""
    return watching.run()
