"""Give each tenant's policy its own terms for the queue of requests and for stored responses."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

#: Column, default, largest value, type. A process that does not know a column leaves it at its default.
COLUMNS = (
    ("queue_seconds", 60, 3600, models.PositiveIntegerField),
    ("queue_requests", 256, 1_000_000, models.PositiveIntegerField),
    ("queue_bytes", 64 << 20, 1 << 40, models.PositiveBigIntegerField),
    ("idempotency_bytes_per_hour", 64 << 20, 1 << 40, models.PositiveBigIntegerField),
)


class Migration(migrations.Migration):
    dependencies: ClassVar = [("tenants", "0007_cache_scopes_and_guards")]
    operations: ClassVar[list[Operation]] = [
        *[
            migrations.AddField("tenantpolicy", name, field(default=default, db_default=default))
            for name, default, _, field in COLUMNS
        ],
        *[
            migrations.AddConstraint(
                "tenantpolicy",
                models.CheckConstraint(
                    name=f"policy_{name.removesuffix('_per_hour')}_in_range",
                    condition=models.Q(**{f"{name}__range": (0, largest)}),
                ),
            )
            for name, _, largest, _ in COLUMNS
        ],
    ]
