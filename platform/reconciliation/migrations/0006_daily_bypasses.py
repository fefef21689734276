"""Daily counts of bypasses are compared too. The database keeps no list of the names."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Nothing changes in the database."""

    dependencies: ClassVar = [("reconciliation", "0005_ledger_checks")]
    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            model_name="bookgap",
            name="book",
            field=models.CharField(
                choices=[
                    ("ledger", "Ledger"),
                    ("roll-ups", "Rollups"),
                    ("daily roll-ups", "Days"),
                    ("daily bypasses", "Bypasses"),
                    ("closed month", "Months"),
                    ("invoice", "Invoices"),
                    ("balanced", "Balanced"),
                    ("own-accounts", "Own Accounts"),
                    ("one-currency", "One Currency"),
                    ("posted-once", "Posted Once"),
                    ("all-posted", "All Posted"),
                    ("as-charged", "As Charged"),
                    ("credit-posted", "Credit Posted"),
                    ("unused-credit", "Unused Credit"),
                    ("not-below-zero", "Not Below Zero"),
                    ("returned", "Returned"),
                ],
                max_length=16,
            ),
        ),
    ]
