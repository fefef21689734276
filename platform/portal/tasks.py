"""The Celery tasks of the portal, on the queue ``background``: idempotent, and safe to lose."""

from __future__ import annotations

import threading

from celery import shared_task

#: One thread of a process asks providers; the others are for other work.
_asking = threading.Lock()


@shared_task(name="portal.tasks.confirm_sessions")
def confirm_sessions() -> int:
    """Ask providers about sessions of their people; return how many ended. Skipped while one runs here."""
    from portal.access.identity import provider_sessions  # with allauth, which other workers need not load

    if not _asking.acquire(blocking=False):
        return 0
    try:
        return provider_sessions.run()
    finally:
        _asking.release()


@shared_task(name="portal.tasks.mail_password_reset")
def mail_password_reset(address: str, origin: str) -> int:
    """Send a link that sets a forgotten password to whoever has the address; return how many were sent."""
    from portal.access.identity import password_reset  # with allauth, which other workers need not load

    return password_reset.send(address, origin)


@shared_task(name="portal.tasks.end_support_views")
def end_support_views() -> int:
    """Append the end of support views whose time is over; return how many."""
    from portal.access import support_view

    return support_view.end_expired()
