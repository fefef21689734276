"""The typed options of engines, and the digest of a folder's files, from which a revision's digest is made."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Two columns, with defaults for rows of the version before."""

    dependencies: ClassVar = [("catalogue", "0004_long_engine_arguments")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("modelrevision", "options", models.JSONField(blank=True, db_default={}, default=dict)),
        migrations.AddField(
            "modelrevision", "weights_digest", models.CharField(blank=True, db_default="", default="", max_length=64)
        ),
    ]
