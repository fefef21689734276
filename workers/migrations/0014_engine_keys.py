"""Which engine key each engine was started with, and which one each agent and gateway process has."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Add one column to each of three tables."""

    dependencies: ClassVar = [("workers", "0013_rights_of_nodes")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(model, "engine_key", models.CharField(blank=True, db_default="", default="", max_length=16))
        for model in ("replica", "node", "gatewayload")
    ]
