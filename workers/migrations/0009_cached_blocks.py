"""How many blocks of each replica's prefix cache are in use."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Add the count."""

    dependencies: ClassVar = [("workers", "0008_scaling_memory")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("replica", "cached_blocks", models.PositiveIntegerField(blank=True, null=True)),
    ]
