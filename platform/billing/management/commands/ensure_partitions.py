"""``hearth manage ensure_partitions``: run as the owner of the tables, after ``migrate``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db import OperationalError

from billing.ledger import partitions


class Command(BaseCommand):
    """Create the missing daily partitions of the usage table. Idempotent."""

    help = f"Create the usage table's partitions for today and the next {partitions.DAYS_AHEAD} days."

    def handle(self, *args: Any, **options: Any) -> None:
        """Create them, and print their names unless verbosity is 0.

        While the table is locked, leave it to the next hour's task: usage of a day without a partition is stored too.
        """
        try:
            made = partitions.ensure()
        except OperationalError as error:
            self.stderr.write(f"no partitions were created: {error}")
            return
        for name in made:
            if options["verbosity"]:
                self.stdout.write(f"created {name}")
