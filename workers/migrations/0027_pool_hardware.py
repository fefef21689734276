"""What the nodes of a pool are and cost, and what a deployment requires of its pools."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Columns with defaults, so that processes of the version before go on."""

    dependencies: ClassVar = [("workers", "0026_slot_readings")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("pool", "gpu_type", models.CharField(blank=True, db_default="", default="", max_length=63)),
        migrations.AddField("pool", "labels", models.JSONField(blank=True, db_default={}, default=dict)),
        migrations.AddField("pool", "slot_hour_pico", models.PositiveBigIntegerField(blank=True, null=True)),
        migrations.AddField("deployment", "requires", models.JSONField(blank=True, null=True)),
    ]
