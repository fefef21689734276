"""Call requests that wait for a replica queued in the code; the columns keep their names."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Change the models' state only."""

    dependencies: ClassVar = [("workers", "0010_busy_gateways")]
    operations: ClassVar[list[Operation]] = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    "gatewayload", "held_requests", models.PositiveIntegerField(default=0, db_column="held_requests")
                ),
                migrations.RenameField("gatewayload", "held_requests", "queued_requests"),
                migrations.AlterField(
                    "gatewayload", "held_tokens", models.PositiveBigIntegerField(default=0, db_column="held_tokens")
                ),
                migrations.RenameField("gatewayload", "held_tokens", "queued_tokens"),
            ]
        ),
    ]
