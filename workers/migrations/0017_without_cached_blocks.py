"""The number of cached blocks per replica, which nothing counts any more.

The column stays in the table with its last numbers: agents of the version before still write it.
"""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Remove the field from the model only."""

    dependencies: ClassVar = [("workers", "0016_max_requests")]
    operations: ClassVar[list[Operation]] = [
        migrations.SeparateDatabaseAndState(state_operations=[migrations.RemoveField("replica", "cached_blocks")])
    ]
