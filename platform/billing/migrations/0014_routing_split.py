"""Which part of a comparison of routing policies each request was in."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column with a default, which neither reads nor rewrites the table."""

    dependencies: ClassVar = [("billing", "0013_queue_ms")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            "ALTER TABLE billing_usagerecord ADD COLUMN routing_split varchar(24) NOT NULL DEFAULT ''",
            "ALTER TABLE billing_usagerecord DROP COLUMN routing_split",
            state_operations=[
                migrations.AddField(
                    "usagerecord",
                    "routing_split",
                    models.CharField(blank=True, db_default="", default="", max_length=24),
                )
            ],
        )
    ]
