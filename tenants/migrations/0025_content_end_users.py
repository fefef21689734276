"""Whom a kept request served, so that one end user's prompts and answers are erased; and what a project has stored."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Two columns. A process that does not know them leaves them as they are."""

    dependencies: ClassVar = [("tenants", "0024_time_zone")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("contententry", "end_user_mac", models.BinaryField(null=True)),
        migrations.AddField(
            "project", "content_bytes", models.BigIntegerField(db_default=0, default=0, editable=False)
        ),
    ]
