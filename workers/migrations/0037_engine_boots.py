"""Engine processes and their counters at the last scrape."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids

ENDS = (("", "None"), ("orderly", "Orderly"), ("killed", "Killed"))
PROTECT = """
    ALTER TABLE workers_engineboot ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON workers_engineboot USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON workers_engineboot;
    ALTER TABLE workers_engineboot DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """One table with row-level security; ``workers.node_role`` adds the policies of nodes."""

    dependencies: ClassVar = [("workers", "0036_node_tokens")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            "EngineBoot",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("generation", models.PositiveIntegerField()),
                ("started_at", models.DateTimeField(db_default=Now())),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("end", models.CharField(blank=True, choices=ENDS, default="", max_length=16)),
                ("whole", models.BooleanField(default=True)),
                ("counted_at", models.DateTimeField(blank=True, null=True)),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("cached_prompt_tokens", models.PositiveBigIntegerField(blank=True, null=True)),
                ("completion_tokens", models.PositiveBigIntegerField(default=0)),
                ("finished_sequences", models.PositiveBigIntegerField(default=0)),
                ("open_sequences", models.PositiveIntegerField(default=0)),
                (
                    "replica",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="boots", to="workers.replica"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("replica", "generation"), name="boot_once")],
                "indexes": [models.Index(fields=["ended_at"], name="boots_by_end")],
            },
        ),
        migrations.RunSQL(PROTECT, RELEASE),
    ]
