"""Which LoRA adapters replicas have loaded."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids

STATES = (("wanted", "Wanted"), ("loaded", "Loaded"), ("failed", "Failed"), ("unloaded", "Unloaded"))
PROTECT = """
    ALTER TABLE workers_adapterload ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON workers_adapterload USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON workers_adapterload;
    ALTER TABLE workers_adapterload DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """A table with row-level security; ``workers.node_role`` adds the policies of nodes."""

    dependencies: ClassVar = [("workers", "0037_engine_boots"), ("catalogue", "0007_adapters")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            "AdapterLoad",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("unwanted_since", models.DateTimeField(blank=True, null=True)),
                ("state", models.CharField(choices=STATES, default="wanted", max_length=16)),
                ("state_since", models.DateTimeField(db_default=Now())),
                ("generation", models.PositiveIntegerField(default=0)),
                ("engine_name", models.CharField(blank=True, default="", max_length=220)),
                ("error", models.CharField(blank=True, default="", max_length=500)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_attempt_at", models.DateTimeField(blank=True, null=True)),
                (
                    "replica",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="adapters", to="workers.replica"
                    ),
                ),
                (
                    "revision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="loads",
                        to="catalogue.modelrevision",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("replica", "revision"), name="adapter_once_per_replica")
                ],
            },
        ),
        migrations.RunSQL(PROTECT, RELEASE),
    ]
