"""By which name the engine of a replica knows a model that has been renamed."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """A column with a default."""

    dependencies: ClassVar = [("workers", "0040_rollout_pools")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "replica", "served_name", models.CharField(blank=True, db_default="", default="", max_length=200)
        )
    ]
