"""Placeholders of several slots, for replicas of several GPUs."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column."""

    dependencies: ClassVar = [("workers", "0042_slot_waits")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("placeholder", "slot_count", models.PositiveSmallIntegerField(db_default=1, default=1)),
    ]
