"""The end of a failed engine's log with its event, and when a slot was taken out of use."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Two columns, which neither read nor rewrite their tables; ``workers.node_role`` adds the nodes' rights."""

    dependencies: ClassVar = [("workers", "0044_staged_weights")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("replicaevent", "log_tail", models.TextField(blank=True, db_default="", default="")),
        migrations.AddField("slot", "quarantined_at", models.DateTimeField(blank=True, null=True)),
    ]
