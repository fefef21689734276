"""What scaling remembers from tick to tick: an earlier load, and since when a prepared pool has not been needed."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand."""

    dependencies: ClassVar = [("workers", "0007_leaving_replicas")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("deployment", "sampled_tokens", models.PositiveBigIntegerField(blank=True, null=True)),
        migrations.AddField("deployment", "sampled_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("deploymentpool", "not_needed_since", models.DateTimeField(blank=True, null=True)),
    ]
