"""Which engine process ran each request, and what the requests of each process took, in its counters' units."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

PURPOSES = (("tenant", "Tenant"), ("canary", "Canary"), ("retry", "Retry"), ("prewarm", "Prewarm"), ("lost", "Lost"))
SUMS = (
    *("requests", "sequences", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "shared_requests"),
    *("cut_requests", "cut_sequences", "cut_prompt_tokens", "cut_completion_tokens"),
)
PRICED = (
    "(price_version_id IS NULL) = (amount_pico IS NULL)"
    " OR (refusals > 0 AND price_version_id IS NULL AND amount_pico = 0)"
)
#: What was lost with an engine is nobody's, so it costs nothing without having a price.
LOST = "(purpose = 'lost' AND price_version_id IS NULL AND amount_pico = 0)"
PRICE = """
    ALTER TABLE billing_usagerecord DROP CONSTRAINT billing_usagerecord_priced,
        ADD CONSTRAINT billing_usagerecord_priced CHECK ({0}) NOT VALID
"""
PROTECT = """
    ALTER TABLE billing_bootusage ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON billing_bootusage
        USING (current_user <> 'hearth_tenant') WITH CHECK (current_user <> 'hearth_tenant');
"""
RELEASE = """
    DROP POLICY platform_sees_all ON billing_bootusage;
    ALTER TABLE billing_bootusage DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """Three columns with defaults, which neither read nor rewrite the table, and a table of sums."""

    dependencies: ClassVar = [("billing", "0015_finish_reason_and_tpot")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            "ALTER TABLE billing_usagerecord ADD COLUMN replica_generation integer NOT NULL DEFAULT 0,"
            " ADD COLUMN sequences smallint NOT NULL DEFAULT 1, ADD COLUMN prompt_copies smallint NOT NULL DEFAULT 1",
            "ALTER TABLE billing_usagerecord DROP COLUMN replica_generation, DROP COLUMN sequences,"
            " DROP COLUMN prompt_copies",
            state_operations=[
                migrations.AddField(
                    "usagerecord", "replica_generation", models.PositiveIntegerField(db_default=0, default=0)
                ),
                migrations.AddField(
                    "usagerecord", "sequences", models.PositiveSmallIntegerField(db_default=1, default=1)
                ),
                migrations.AddField(
                    "usagerecord", "prompt_copies", models.PositiveSmallIntegerField(db_default=1, default=1)
                ),
            ],
        ),
        migrations.CreateModel(
            "BootUsage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("replica_id", models.UUIDField()),
                ("generation", models.PositiveIntegerField()),
                ("purpose", models.CharField(choices=PURPOSES, max_length=16)),
                *((name, models.PositiveBigIntegerField(default=0)) for name in SUMS),
            ],
            options={
                "verbose_name_plural": "boot usage",
                "constraints": [
                    models.UniqueConstraint(fields=("replica_id", "generation", "purpose"), name="boot_usage_once")
                ],
            },
        ),
        migrations.RunSQL(PROTECT, RELEASE),
        migrations.RunSQL(PRICE.format(f"{PRICED} OR {LOST}"), PRICE.format(PRICED)),
    ]
