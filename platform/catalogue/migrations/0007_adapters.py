"""LoRA adapters: the model that one changes, and the revision that its replicas load before requests go to it."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Three columns, all of which may be empty."""

    dependencies: ClassVar = [("catalogue", "0006_engine_versions")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "model",
            "base",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="adapters",
                to="catalogue.model",
            ),
        ),
        migrations.AddField(
            "model",
            "next_revision",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="catalogue.modelrevision",
            ),
        ),
        migrations.AddField("modelrevision", "adapter", models.JSONField(blank=True, null=True)),
    ]
