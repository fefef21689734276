"""The Celery tasks of notifications, on the queue ``background``: idempotent, and safe to lose."""

from __future__ import annotations

import threading

from celery import shared_task

from notifications import dispatch, keeping
from notifications.webhooks import pump

#: One thread of a process sends; the others are for other work.
_sending = threading.Lock()


@shared_task(name="notifications.tasks.send")
def send() -> int:
    """Dispatch new events and send what is due; return how many attempts were made. Skipped while one runs here."""
    if not _sending.acquire(blocking=False):
        return 0
    try:
        dispatch.run()
        return pump.run()
    finally:
        _sending.release()


@shared_task(name="notifications.tasks.maintain")
def maintain() -> int:
    """Delete old events; return how many."""
    return keeping.delete_old()
