"""The cost centres of closed months and of their lines by project, as they were at the closing."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: nullable columns, which an earlier release leaves empty. Months that it closed have today's."""

    dependencies: ClassVar = [("billing", "0042_daily_totals")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(model, "cost_centre", models.CharField(max_length=64, null=True))
        for model in ("billingmonth", "monthprojectline")
    ]
