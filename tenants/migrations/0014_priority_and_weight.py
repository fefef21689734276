"""Give each tenant's policy its class and its share while every replica is full."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Two columns. A process that does not know them leaves them at their defaults."""

    dependencies: ClassVar = [("tenants", "0013_sessions")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "tenantpolicy",
            "priority",
            models.CharField(
                choices=[("low", "Low"), ("standard", "Standard"), ("high", "High")],
                db_default="standard",
                default="standard",
                max_length=8,
            ),
        ),
        migrations.AddField("tenantpolicy", "weight", models.PositiveSmallIntegerField(db_default=1, default=1)),
        migrations.AddConstraint(
            "tenantpolicy",
            models.CheckConstraint(
                name="policy_priority_known",
                # Not IN, which PostgreSQL writes in another way once it was dumped and restored.
                condition=models.Q(priority="low") | models.Q(priority="standard") | models.Q(priority="high"),
            ),
        ),
        migrations.AddConstraint(
            "tenantpolicy",
            models.CheckConstraint(name="policy_weight_in_range", condition=models.Q(weight__range=(1, 1000))),
        ),
    ]
