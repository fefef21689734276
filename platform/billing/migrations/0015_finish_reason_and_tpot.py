"""Why each answer ended, and how fast it was written."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Two columns, neither of which reads or rewrites the table."""

    dependencies: ClassVar = [("billing", "0014_routing_split")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            "ALTER TABLE billing_usagerecord ADD COLUMN finish_reason varchar(32) NOT NULL DEFAULT '', "
            "ADD COLUMN tpot_ms double precision",
            "ALTER TABLE billing_usagerecord DROP COLUMN finish_reason, DROP COLUMN tpot_ms",
            state_operations=[
                migrations.AddField(
                    "usagerecord",
                    "finish_reason",
                    models.CharField(blank=True, db_default="", default="", max_length=32),
                ),
                migrations.AddField("usagerecord", "tpot_ms", models.FloatField(null=True)),
            ],
        )
    ]
