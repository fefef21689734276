"""Credit of one more kind: what was paid for a void invoice and its month does not need."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: nothing changes in the database."""

    dependencies: ClassVar = [
        ("billing", "0030_bank_lines"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            model_name="creditentry",
            name="kind",
            field=models.CharField(
                choices=[
                    ("top_up", "Top Up"),
                    ("promotion", "Promotion"),
                    ("refund", "Refund"),
                    ("correction", "Correction"),
                    ("reversal", "Reversal"),
                    ("expired", "Expired"),
                    ("applied", "Applied"),
                    ("unapplied", "Unapplied"),
                    ("overpaid", "Overpaid"),
                ],
                max_length=16,
            ),
        ),
    ]
