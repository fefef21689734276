"""Celery tasks of billing: idempotent, and safe to lose, because the next tick does the same work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from uuid import UUID

from celery import shared_task
from django.db import transaction
from django.utils import timezone

from billing.accounts import promotions
from billing.drain import batch, day_folding
from billing.dunning import run as dunning
from billing.invoices import overdue
from billing.payments import retrying
from billing.runs import advancing, registry
from billing.stripe import comparison, events, pushing
from tenants.audit import SYSTEM, Actor

log = logging.getLogger(__name__)

#: One thread of a process calls Stripe; the others are for other work.
_calling = threading.Lock()
#: One thread of a process goes on with runs; the others are for what is sent out meanwhile.
_running = threading.Lock()


@shared_task(name="billing.tasks.maintain")
def maintain() -> int:
    """Rate rows that waited for a price; return how many."""
    return batch.rate_unrated()


@shared_task(name="billing.tasks.note_overdue_invoices")
def note_overdue_invoices() -> int:
    """Note invoices that were not paid in time; return how many."""
    return overdue.note(timezone.now())


@shared_task(name="billing.tasks.dun")
def dun() -> int:
    """Try lines of bank statements again, then take the steps of dunning that are due; return how many steps."""
    try:
        retrying.run(SYSTEM)
    except Exception:  # whatever it is about a line, invoices that are late are looked at
        log.exception("lines of bank statements could not be tried again")
    return dunning.run(timezone.now()).steps


@shared_task(name="billing.tasks.expire_promotions")
def expire_promotions() -> int:
    """Take back what is left of promotions that have expired; return how many entries were made."""
    return promotions.expire(timezone.now())


@shared_task(name="billing.tasks.fold_days")
def fold_days() -> int:
    """Fold half-hours and days that ended into their roll-ups; return how many days.

    The first runs fold those of earlier releases.
    """
    day_folding.fold_half_hours(timezone.now())
    return day_folding.fold(timezone.now())


@shared_task(name="billing.tasks.process_stripe")
def process_stripe() -> int:
    """Process Stripe's events and go on with invoices that were begun; return how many. Skipped while one runs here."""
    if not _calling.acquire(blocking=False):
        return 0
    try:
        try:
            done = events.process()
        finally:  # neither waits for the other
            resumed = pushing.resume(timezone.now())
        return done + resumed
    finally:
        _calling.release()


@shared_task(name="billing.tasks.compare_stripe")
def compare_stripe() -> int:
    """Compare with Stripe each account whose last comparison is a day old; return how much differs.

    Delete old events too.
    """
    events.delete_old(timezone.now())
    return comparison.run_due(timezone.now())


@shared_task(name="billing.tasks.advance_runs")
def advance_runs() -> bool:
    """Go on with runs for some seconds, and send itself again while more is left. Skipped while one runs here."""
    if not _running.acquire(blocking=False):
        return False
    try:
        is_left = advancing.go_on()
    finally:
        _running.release()
    if is_left:
        send_advance_runs()
    return is_left


def send_advance_runs() -> None:
    """Have the role background go on with runs at once if the broker takes the task; else its next tick does."""
    try:
        advance_runs.apply_async(queue="background", retry=False, expires=60)
    except Exception:
        log.warning("The broker took no task; the next tick goes on with the runs.", exc_info=True)


def match_later(actor: Actor, lines: Sequence[UUID]) -> UUID:
    """Have the role background match stored lines of bank statements; return the id of the run that does."""
    with transaction.atomic():
        run = registry.begin_matching(actor, lines)
        transaction.on_commit(send_advance_runs)
    return run.id
