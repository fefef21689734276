"""Which payment a refund or a dispute of Stripe is of; a kind of credit request for money that went back."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: a column with a default of the database. The choices change nothing there."""

    dependencies: ClassVar = [("billing", "0040_one_currency")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            model_name="stripeevent",
            name="payment_intent",
            field=models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
        migrations.AlterField(
            model_name="creditrequest",
            name="kind",
            field=models.CharField(
                choices=[
                    ("top_up", "Top Up"),
                    ("promotion", "Promotion"),
                    ("refund", "Refund"),
                    ("correction", "Correction"),
                    ("return", "Return"),
                    ("reversal", "Reversal"),
                ],
                max_length=16,
            ),
        ),
    ]
