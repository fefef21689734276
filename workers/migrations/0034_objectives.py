"""The signals of engines that scaling follows beside tokens in flight."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column."""

    dependencies: ClassVar = [("workers", "0033_node_metrics")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("deployment", "objectives", models.JSONField(blank=True, null=True)),
    ]
