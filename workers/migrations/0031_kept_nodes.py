"""Since when a deployment has waited for slots, and the node whose slots are kept for it."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Columns with defaults, so that processes of the version before go on."""

    dependencies: ClassVar = [("workers", "0030_failover")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("deployment", "waits_since", models.DateTimeField(blank=True, null=True)),
        migrations.AddField(
            "deployment",
            "kept_node",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="kept_for",
                to="workers.node",
            ),
        ),
    ]
