"""Record with each entry of the audit log whether an operator acted: accounts of operators change and are removed."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: a column that the version before leaves empty."""

    dependencies: ClassVar = [("tenants", "0011_bounds_remember_who_set_them")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("auditentry", "by_operator", models.BooleanField(null=True)),
    ]
