"""How many tokens a replica's engine keeps in host memory."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column."""

    dependencies: ClassVar = [("workers", "0019_weights")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("replica", "host_cache_tokens", models.PositiveBigIntegerField(blank=True, null=True)),
    ]
