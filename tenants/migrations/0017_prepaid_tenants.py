"""Tenants that may only spend what they have paid in advance: the id of the counter in Redis of what is left."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One nullable column. A process that does not know it does not check the balance."""

    dependencies: ClassVar = [("tenants", "0016_cost_centres")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("tenant", "prepaid_counter_id", models.UUIDField(blank=True, null=True)),
    ]
