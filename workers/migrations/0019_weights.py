"""Which files of models nodes have, and the sealed tokens for the hub."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids

STATES = (("wanted", "Wanted"), ("fetching", "Fetching"), ("ready", "Ready"), ("failed", "Failed"))
PROTECT = """
    ALTER TABLE {0} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON {0} USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON {0};
    ALTER TABLE {0} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """Two tables with row-level security; ``workers.node_role`` adds the policies of nodes."""

    dependencies: ClassVar = [("workers", "0018_routing_policies"), ("catalogue", "0003_shared_models")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            "Weights",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("state", models.CharField(choices=STATES, default="wanted", max_length=16)),
                ("state_since", models.DateTimeField(db_default=Now())),
                ("bytes_done", models.PositiveBigIntegerField(default=0)),
                ("bytes_total", models.PositiveBigIntegerField(blank=True, null=True)),
                ("folder", models.CharField(blank=True, default="", max_length=1000)),
                ("error", models.CharField(blank=True, default="", max_length=500)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_attempt_at", models.DateTimeField(blank=True, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="weights", to="workers.node"
                    ),
                ),
                (
                    "revision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="weights",
                        to="catalogue.modelrevision",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "weights",
                "constraints": [
                    models.UniqueConstraint(fields=("node", "revision"), name="weights_once_per_node"),
                    models.CheckConstraint(
                        condition=~models.Q(state="ready") | ~models.Q(folder=""), name="ready_weights_have_folder"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            "HubToken",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("sealed", models.BinaryField()),
                ("engine_key", models.CharField(max_length=16)),
                ("set_at", models.DateTimeField(db_default=Now())),
                (
                    "model",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="hub_token", to="catalogue.model"
                    ),
                ),
            ],
        ),
        *[
            migrations.RunSQL(PROTECT.format(table), RELEASE.format(table))
            for table in ("workers_weights", "workers_hubtoken")
        ],
    ]
