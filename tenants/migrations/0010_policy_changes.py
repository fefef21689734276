"""Record what each policy epoch changed, so that a gateway reads one key instead of all."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    dependencies: ClassVar = [("tenants", "0009_tenant_wide_keys")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="PolicyChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("epoch", models.BigIntegerField()),
                ("changed_tenant", models.UUIDField(null=True)),
                ("changed_key", models.UUIDField(null=True)),
            ],
            options={"indexes": [models.Index(fields=["epoch"], name="policy_changes_by_epoch")]},
        ),
    ]
