"""How long the parts of a start took."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Four columns."""

    dependencies: ClassVar = [("workers", "0027_pool_hardware")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("starttime", name, models.FloatField(blank=True, null=True))
        for name in ("fetch_seconds", "load_seconds", "compile_seconds", "warm_up_seconds")
    ]
