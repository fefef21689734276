"""Expand: a table."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """A table with a column that the next version does not use."""

    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL("CREATE TABLE contracting (old integer, new integer)", "DROP TABLE contracting")
    ]
