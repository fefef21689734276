"""Count the tasks that took a deferred request, so that one which died is replaced once."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: the column has a default, so the version before this one goes on writing rows."""

    dependencies: ClassVar = [("workers", "0002_guards")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            model_name="deferredrequest",
            name="attempts",
            field=models.PositiveSmallIntegerField(default=0, db_default=0),
        ),
    ]
