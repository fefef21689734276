"""How the requests of a deployment choose their replica."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column, empty for the default."""

    dependencies: ClassVar = [("workers", "0017_without_cached_blocks")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("deployment", "routing", models.JSONField(blank=True, null=True)),
    ]
