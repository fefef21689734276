"""The error of each failed request, rows for refused requests, and how many were refused in each roll-up.

A refusal has an amount of zero and no price. The new checks are not validated, because a validation reads the whole
table and blocks everybody meanwhile. It is not needed: existing rows meet the stricter check that one of them replaces,
and a new column has its default.
"""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

PRICED = "(price_version_id IS NULL) = (amount_pico IS NULL)"
ADD = f"""
    ALTER TABLE billing_usagerecord
        ADD COLUMN error_code varchar(64) NOT NULL DEFAULT '',
        ADD COLUMN error_message varchar(300) NOT NULL DEFAULT '',
        ADD COLUMN refusals integer NOT NULL DEFAULT 0,
        ADD CONSTRAINT billing_usagerecord_refusals_check CHECK (refusals >= 0) NOT VALID,
        DROP CONSTRAINT billing_usagerecord_check,
        ADD CONSTRAINT billing_usagerecord_priced
            CHECK ({PRICED} OR (refusals > 0 AND price_version_id IS NULL AND amount_pico = 0)) NOT VALID;
"""
REMOVE = f"""
    DELETE FROM billing_usagerecord WHERE refusals > 0;
    ALTER TABLE billing_usagerecord
        DROP CONSTRAINT billing_usagerecord_priced,
        ADD CONSTRAINT billing_usagerecord_check CHECK ({PRICED}) NOT VALID,
        DROP COLUMN error_code,
        DROP COLUMN error_message,
        DROP COLUMN refusals;
"""
ADD_TO_ROLLUP = """
    ALTER TABLE billing_usagerollup
        ADD COLUMN refused_requests bigint NOT NULL DEFAULT 0,
        ADD CONSTRAINT billing_usagerollup_refused_requests_check CHECK (refused_requests >= 0) NOT VALID;
"""


class Migration(migrations.Migration):
    """Columns and checks; none of them reads or rewrites a table."""

    dependencies: ClassVar = [("billing", "0006_rollups_by_key")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            ADD,
            REMOVE,
            state_operations=[
                migrations.AddField(
                    "usagerecord", "error_code", models.CharField(blank=True, db_default="", default="", max_length=64)
                ),
                migrations.AddField(
                    "usagerecord",
                    "error_message",
                    models.CharField(blank=True, db_default="", default="", max_length=300),
                ),
                migrations.AddField("usagerecord", "refusals", models.PositiveIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.RunSQL(
            ADD_TO_ROLLUP,
            "ALTER TABLE billing_usagerollup DROP COLUMN refused_requests",
            state_operations=[
                migrations.AddField(
                    "usagerollup", "refused_requests", models.PositiveBigIntegerField(db_default=0, default=0)
                )
            ],
        ),
    ]
