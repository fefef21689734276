"""Whether a request has a trace, so that a page can say where to find it."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column, which neither reads nor rewrites the table."""

    dependencies: ClassVar = [("billing", "0018_daily_partitions")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            "ALTER TABLE billing_usagerecord ADD COLUMN traced boolean NOT NULL DEFAULT false",
            "ALTER TABLE billing_usagerecord DROP COLUMN traced",
            state_operations=[
                migrations.AddField("usagerecord", "traced", models.BooleanField(db_default=False, default=False))
            ],
        )
    ]
