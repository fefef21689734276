"""Models have a date from which on they are refused, and revisions say what their files tell of what they can do."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Four columns, all of which may be empty."""

    dependencies: ClassVar = [("catalogue", "0007_adapters")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("model", "deprecated_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("model", "retires_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField(
            "model", "replacement", models.CharField(blank=True, db_default="", default="", max_length=200)
        ),
        migrations.AddField("modelrevision", "file_facts", models.JSONField(blank=True, null=True)),
    ]
