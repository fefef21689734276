"""The Celery task of retention: idempotent, and safe to lose, because the next one does the same work."""

from __future__ import annotations

import logging

from celery import shared_task
from django.db import OperationalError

from billing.ledger import partitions
from retention import erasure, metrics, retire

log = logging.getLogger(__name__)


@shared_task(name="retention.tasks.maintain")
def maintain() -> None:
    """Create the partitions of the coming months, retire what is due, and finish erasures."""
    try:
        for name in partitions.ensure():
            log.info("created the partition %s", name)
    except OperationalError as error:  # a partition that is missing loses no usage: the default one has it
        metrics.FAILURES.labels("partitions").inc()
        log.warning("no partitions were created, and the next attempt is in an hour: %s", error)
    retire.run()
    erasure.repeat()
