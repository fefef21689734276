"""The longest context of a replica's engine."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column."""

    dependencies: ClassVar = [("workers", "0020_host_cache_tokens")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("replica", "context_tokens", models.PositiveIntegerField(blank=True, null=True)),
    ]
