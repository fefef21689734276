"""A price for each request that an engine runs, and multipliers for the priorities of tenants."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

_PRIORITY = models.CharField(max_length=8, default="standard", db_default="standard")


class Migration(migrations.Migration):
    """Columns with defaults, which neither read nor rewrite the tables."""

    dependencies: ClassVar = [("billing", "0021_billing_accounts")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("priceversion", "request_pico", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddField(
            "priceversion", "low_priority_bp", models.PositiveIntegerField(db_default=10_000, default=10_000)
        ),
        migrations.AddField(
            "priceversion", "high_priority_bp", models.PositiveIntegerField(db_default=10_000, default=10_000)
        ),
        migrations.AddConstraint(
            "priceversion",
            models.CheckConstraint(condition=models.Q(("request_pico__gte", 0)), name="request_price_not_negative"),
        ),
        migrations.AddField("monthline", "priority", _PRIORITY),
        migrations.RunSQL(
            "ALTER TABLE billing_usagerecord ADD COLUMN priority varchar(8) NOT NULL DEFAULT 'standard'",
            "ALTER TABLE billing_usagerecord DROP COLUMN priority",
            state_operations=[migrations.AddField("usagerecord", "priority", _PRIORITY)],
        ),
    ]
