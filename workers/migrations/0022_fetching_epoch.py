"""Whether a node's agent fetches the files of models."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column."""

    dependencies: ClassVar = [("workers", "0021_context_tokens")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("node", "fetching_epoch", models.BigIntegerField(db_default=0, default=0)),
    ]
