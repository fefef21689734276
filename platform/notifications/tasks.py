"""The Celery tasks of notifications, on the queue ``background``: idempotent, and safe to lose."""

from __future__ import annotations

import threading

from celery import shared_task

from notifications import dispatch, keeping, key_expiry
from notifications.mail import sending
from notifications.webhooks import pump

#: One thread of a process sends; the others are for other work.
_sending = threading.Lock()
_mailing = threading.Lock()


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
    """Announce keys that expire soon, and delete old events; return how many were deleted."""
    key_expiry.announce()
    return keeping.delete_old()


@shared_task(name="notifications.tasks.send_mail")
def send_mail() -> int:
    """Send the e-mails that are due; return how many were sent. Skipped while one runs here."""
    if not _mailing.acquire(blocking=False):
        return 0
    try:
        return sending.send_due()
    finally:
        _mailing.release()
