"""Contract: the column that only the version before uses."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Drop the column."""

    contracts = True
    dependencies: ClassVar = [("contracting", "0001_initial")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL("ALTER TABLE contracting DROP COLUMN old", "ALTER TABLE contracting ADD COLUMN old integer")
    ]
