"""When a gateway last had a request of a deployment, however short."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand."""

    dependencies: ClassVar = [("workers", "0009_cached_blocks")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("gatewayload", "busy_at", models.DateTimeField(null=True)),
    ]
