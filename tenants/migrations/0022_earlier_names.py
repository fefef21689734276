"""The names that a budget's model had before."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column with a default, which rewrites no row."""

    dependencies: ClassVar = [
        ("tenants", "0021_invitations"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            model_name="budget",
            name="earlier_names",
            field=ArrayField(
                base_field=models.CharField(max_length=200), blank=True, db_default=[], default=list, size=None
            ),
        ),
    ]
