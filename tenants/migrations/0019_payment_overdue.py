"""Since when a tenant's requests are refused because it has not paid."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One nullable column. A process that does not know it serves the tenant."""

    dependencies: ClassVar = [
        ("tenants", "0018_playground_keys"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            model_name="tenant",
            name="payment_overdue_since",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
