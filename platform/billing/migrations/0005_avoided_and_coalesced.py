"""What hits and coalesced responses avoided, and the price of a coalesced response."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

#: Changes the parent, and with it every partition, without rewriting rows.
AVOIDED = """
    ALTER TABLE billing_usagerecord
        ADD COLUMN avoided_cached_prompt_tokens integer NOT NULL DEFAULT 0 CHECK (avoided_cached_prompt_tokens >= 0),
        ADD COLUMN avoided_engine_ms double precision NOT NULL DEFAULT 0 CHECK (avoided_engine_ms >= 0),
        ADD COLUMN source_id uuid;
"""
NOT_AVOIDED = """
    ALTER TABLE billing_usagerecord
        DROP COLUMN avoided_cached_prompt_tokens, DROP COLUMN avoided_engine_ms, DROP COLUMN source_id;
"""


class Migration(migrations.Migration):
    """Columns of the usage table, and a price."""

    dependencies: ClassVar = [("billing", "0004_budget_windows")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            AVOIDED,
            NOT_AVOIDED,
            state_operations=[
                migrations.AddField(
                    "usagerecord", "avoided_cached_prompt_tokens", models.PositiveIntegerField(default=0)
                ),
                migrations.AddField("usagerecord", "avoided_engine_ms", models.FloatField(default=0.0)),
                migrations.AddField("usagerecord", "source_id", models.UUIDField(null=True)),
            ],
        ),
        migrations.AddField("priceversion", "coalesced_pico", models.BigIntegerField(db_default=0, default=0)),
        migrations.AddConstraint(
            "priceversion",
            models.CheckConstraint(condition=models.Q(("coalesced_pico__gte", 0)), name="coalesced_price_not_negative"),
        ),
    ]
