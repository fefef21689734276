"""Which pools a deployment had before a rollout."""

from typing import ClassVar

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """A column that may be empty."""

    dependencies: ClassVar = [("workers", "0039_learned_targets")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "rollout",
            "earlier_pools",
            django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), blank=True, null=True, size=None),
        )
    ]
