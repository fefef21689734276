"""What the device of a slot does: the last reading, and when it was read."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Two columns."""

    dependencies: ClassVar = [("workers", "0025_engine_versions")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("slot", "reading", models.JSONField(blank=True, db_default={}, default=dict)),
        migrations.AddField("slot", "read_at", models.DateTimeField(blank=True, null=True)),
    ]
