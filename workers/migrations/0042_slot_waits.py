"""When deployments waited for slots, beside what placeholders held meanwhile."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids

PROTECT = """
    ALTER TABLE workers_slotwait ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON workers_slotwait USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON workers_slotwait;
    ALTER TABLE workers_slotwait DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """A table with row-level security that only the platform reads, and an index."""

    dependencies: ClassVar = [("workers", "0041_served_names")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            "SlotWait",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("began_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="slot_waits", to="workers.deployment"
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="slot_waits", to="workers.pool"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(ended_at=None), fields=("deployment", "pool"), name="one_open_wait_per_pool"
                    )
                ],
                "indexes": [models.Index(fields=["ended_at"], name="slot_waits_by_end")],
            },
        ),
        migrations.AddIndex(
            "slotlease",
            models.Index(
                condition=models.Q(kind="placeholder"), fields=["released_at"], name="placeholder_leases_by_end"
            ),
        ),
        migrations.RunSQL(PROTECT, RELEASE),
    ]
