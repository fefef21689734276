"""What `hearth gpu-check` last found on a node."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """A column, which neither reads nor rewrites its table; ``workers.node_role`` adds the nodes' right."""

    dependencies: ClassVar = [("workers", "0045_engine_logs")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("node", "gpu_check", models.JSONField(blank=True, db_default={}, default=dict)),
    ]
