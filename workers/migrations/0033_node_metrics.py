"""Where a node's metrics are."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column."""

    dependencies: ClassVar = [("workers", "0032_named_secrets")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("node", "metrics", models.JSONField(blank=True, db_default={}, default=dict)),
    ]
