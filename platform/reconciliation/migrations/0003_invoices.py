"""Invoices among the books that are compared. The database does not change."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: one more word for a column that takes any."""

    dependencies: ClassVar = [("reconciliation", "0002_closed_months")]
    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            "bookgap",
            "book",
            models.CharField(
                choices=[
                    ("ledger", "Ledger"),
                    ("roll-ups", "Rollups"),
                    ("closed month", "Months"),
                    ("invoice", "Invoices"),
                ],
                max_length=16,
            ),
        ),
    ]
