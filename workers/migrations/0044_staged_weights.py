"""Files of models that nodes keep in the page cache."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids

PROTECT = """
    ALTER TABLE workers_stagedweights ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON workers_stagedweights USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON workers_stagedweights;
    ALTER TABLE workers_stagedweights DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """A column with its bounds, and a table with row-level security; ``workers.node_role`` adds the nodes' policies."""

    dependencies: ClassVar = [("workers", "0043_placeholder_slots")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("pool", "staged_share", models.FloatField(db_default=0.0, default=0.0)),
        migrations.AddConstraint(
            "pool",
            models.CheckConstraint(
                condition=models.Q(staged_share__gte=0) & models.Q(staged_share__lte=0.9), name="pool_staged_share"
            ),
        ),
        migrations.CreateModel(
            "StagedWeights",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("wanted_at", models.DateTimeField(blank=True, null=True)),
                ("bytes_total", models.PositiveBigIntegerField(db_default=0, default=0)),
                ("bytes_resident", models.PositiveBigIntegerField(db_default=0, default=0)),
                ("note", models.CharField(blank=True, db_default="", default="", max_length=500)),
                ("measured_at", models.DateTimeField(blank=True, null=True)),
                *(
                    (
                        name,
                        models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="staged", to=model),
                    )
                    for name, model in (("node", "workers.node"), ("revision", "catalogue.modelrevision"))
                ),
            ],
            options={
                "verbose_name_plural": "staged weights",
                "constraints": [models.UniqueConstraint(fields=("node", "revision"), name="staged_once_per_node")],
            },
        ),
        migrations.RunSQL(PROTECT, RELEASE),
    ]
