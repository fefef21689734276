"""The Celery task of retention: idempotent, and safe to lose, because the next one does the same work."""

from __future__ import annotations

import logging

from celery import shared_task
from django.db import OperationalError

from billing.ledger import partitions
from retention import erasure, metrics, retire
from tenants.content import entries
from tenants.idempotency import stored_responses

log = logging.getLogger(__name__)


@shared_task(name="retention.tasks.maintain")
def maintain() -> None:
    """Make the partitions of coming months, retire what is due, clear content logs and old keys, finish erasures."""
    try:
        for name in partitions.ensure():
            log.info("created the partition %s", name)
    except OperationalError as error:  # a partition that is missing loses no usage: the default one has it
        metrics.FAILURES.labels("partitions").inc()
        log.warning("no partitions were created, and the next attempt is in an hour: %s", error)
    retire.run()
    try:
        metrics.RETIRED_ROWS.labels("content").inc(entries.expire())
    except OperationalError:
        metrics.FAILURES.labels("content").inc()
        log.exception("content logs were not cleared of what is too old, and the next attempt is in an hour")
    try:
        metrics.RETIRED_ROWS.labels("idempotency").inc(stored_responses.delete_old())
    except OperationalError:
        metrics.FAILURES.labels("idempotency").inc()
        log.exception("responses stored for repetitions were not deleted, and the next attempt is in an hour")
    erasure.repeat()
