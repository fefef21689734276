"""Entry point of the ``drain`` role; ``python -m billing.drain.main`` runs it alone.

See :mod:`billing.drain.drain`, and :mod:`billing.budgets.reconciler` for budgets.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from billing.drain.drain import Drain


def main(watch: Callable[[Drain], None] = lambda drain: None) -> None:
    """Drain this instance's log directory until SIGTERM or SIGINT. ``watch`` is called with the drain before it starts.

    Raises WalDirectoryBusy.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    django.setup()
    from django.conf import settings

    from billing.budgets import spending
    from billing.budgets.reconciler import TIMEOUT_SECONDS, BudgetReconciler
    from billing.budgets.redis_counters import BudgetCounters
    from billing.drain.drain import Drain  # its models need the settings

    drain = Drain(settings.WAL_DIR, settings.NODE_NAME)
    signal.signal(signal.SIGTERM, drain.stop)
    signal.signal(signal.SIGINT, drain.stop)
    logging.getLogger(__name__).info("draining %s", settings.WAL_DIR)
    watch(drain)
    counters = BudgetCounters(settings.REDIS_LIMITS_URL, timeout_seconds=TIMEOUT_SECONDS)
    reconciler = BudgetReconciler(counters, drain.open_starts, host=settings.NODE_NAME)

    @cache
    def may_reconcile() -> bool:
        return spending.may_be_counted()

    def after_batch(*, caught_up: bool) -> None:
        # A node's role reads no budgets. It needs none, because its log has only canaries.
        if may_reconcile():
            reconciler.run_if_due(caught_up=caught_up)

    drain.run(after_batch)


if __name__ == "__main__":
    main()
