"""What gateways have in flight for requests that may run only in some regions."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column with a default, so that gateways of the version before go on."""

    dependencies: ClassVar = [("workers", "0023_rollouts")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "gatewayload", "regional_tokens", models.JSONField(blank=True, db_default={}, default=dict)
        ),
    ]
