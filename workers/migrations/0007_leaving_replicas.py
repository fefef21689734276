"""Replicas that serve until they are replaced."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Add the mark."""

    dependencies: ClassVar = [("workers", "0006_fleet_guards")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("replica", "leaving", models.BooleanField(db_default=False, default=False)),
    ]
