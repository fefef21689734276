"""How fast a replica answers, and how much of its prompts it had cached."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Three columns."""

    dependencies: ClassVar = [("workers", "0028_start_parts")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("replica", name, models.FloatField(blank=True, null=True))
        for name in ("ttft_seconds", "tpot_seconds", "prefix_hit_share")
    ]
