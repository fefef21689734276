"""Since when a pool's replicas are in later pools, and which of them move back."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

_ACTIONS = ("up", "down", "wake", "prepare", "release", "failover", "failback")


class Migration(migrations.Migration):
    """Columns with defaults, so that processes of the version before go on."""

    dependencies: ClassVar = [("workers", "0029_replica_times")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("deploymentpool", "failed_over_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("deploymentpool", "works_since", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("replica", "moves_back", models.BooleanField(db_default=False, default=False)),
        migrations.AlterField(
            "scaledecision",
            "action",
            models.CharField(choices=[(each, each.capitalize()) for each in _ACTIONS], max_length=16),
        ),
    ]
