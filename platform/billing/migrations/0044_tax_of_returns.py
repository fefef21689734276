"""The invoice and the tax of money that went back, and what became of a refund or a dispute."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: columns that are nullable or have a default of the database. Returns of before have no tax."""

    dependencies: ClassVar = [("billing", "0043_cost_centres_of_closed_months")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "creditrequest",
            "invoice",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="returns",
                to="billing.invoice",
            ),
        ),
        migrations.AddField(
            "creditrequest",
            "tax_pico",
            models.DecimalField(db_default=0, decimal_places=0, default=0, max_digits=38),
        ),
        migrations.AddField(
            "stripeevent",
            "object_status",
            models.CharField(blank=True, db_default="", default="", max_length=40),
        ),
    ]
