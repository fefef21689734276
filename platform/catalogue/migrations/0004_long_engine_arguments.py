"""Engine arguments of any length."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Widen one column. Its reverse fails while an argument is longer than 200 characters."""

    dependencies: ClassVar = [("catalogue", "0003_shared_models")]
    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            "modelrevision", "engine_args", ArrayField(models.TextField(), blank=True, default=list, size=None)
        ),
    ]
