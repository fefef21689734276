"""``hearth manage ensure_partitions``: run as the owner of the tables, after ``migrate``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from billing.ledger import partitions


class Command(BaseCommand):
    """Make the monthly partitions of the usage table that are missing. Idempotent."""

    help = "Make the usage table's partitions of this month and the next three."

    def handle(self, *args: Any, **options: Any) -> None:
        """Make them, and name those made when asked to be more than quiet."""
        for name in partitions.ensure():
            if options["verbosity"]:
                self.stdout.write(f"made {name}")
