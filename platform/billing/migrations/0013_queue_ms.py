"""How long each request waited for a replica, or for room on one."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column with a default, which neither reads nor rewrites the table."""

    dependencies: ClassVar = [("billing", "0012_predicted_cached_tokens")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            "ALTER TABLE billing_usagerecord ADD COLUMN queue_ms double precision NOT NULL DEFAULT 0",
            "ALTER TABLE billing_usagerecord DROP COLUMN queue_ms",
            state_operations=[
                migrations.AddField("usagerecord", "queue_ms", models.FloatField(db_default=0.0, default=0.0))
            ],
        )
    ]
