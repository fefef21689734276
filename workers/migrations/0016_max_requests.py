"""How many requests a replica's engine runs at once."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column."""

    dependencies: ClassVar = [("workers", "0015_cache_tokens")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("replica", "max_requests", models.PositiveIntegerField(blank=True, null=True)),
    ]
