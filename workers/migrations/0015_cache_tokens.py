"""How many tokens a replica's KV cache holds."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column."""

    dependencies: ClassVar = [("workers", "0014_engine_keys")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("replica", "cache_tokens", models.PositiveBigIntegerField(blank=True, null=True)),
    ]
