"""Targets of replicas are learned from the rates that are measured, where nobody has set one."""

from typing import ClassVar

import django.db.models.deletion
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation

import tenants.ids

DEFAULT_TARGET_TOKENS = 16_384
PROTECT = """
    ALTER TABLE workers_loadcurve ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON workers_loadcurve USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON workers_loadcurve;
    ALTER TABLE workers_loadcurve DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


def keep_what_was_set(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Let a target other than the default count as set by somebody."""
    rows = apps.get_model("workers", "Deployment").objects.exclude(target_tokens_per_replica=DEFAULT_TARGET_TOKENS)
    rows.update(learns_target=False)


class Migration(migrations.Migration):
    """A column, and a table with row-level security that only the platform reads."""

    dependencies: ClassVar = [("workers", "0038_adapters")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("deployment", "learns_target", models.BooleanField(db_default=True, default=True)),
        migrations.CreateModel(
            "LoadCurve",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("points", models.JSONField(blank=True, default=list)),
                ("window", models.JSONField(blank=True, null=True)),
                ("target_tokens", models.PositiveIntegerField(blank=True, null=True)),
                ("reason", models.CharField(blank=True, default="", max_length=500)),
                ("moved_at", models.DateTimeField(blank=True, null=True)),
                ("measured_at", models.DateTimeField(blank=True, null=True)),
                *(
                    (
                        name,
                        models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="curves", to=model),
                    )
                    for name, model in (
                        ("deployment", "workers.deployment"),
                        ("revision", "catalogue.modelrevision"),
                        ("pool", "workers.pool"),
                    )
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("deployment", "revision", "pool"), name="curve_once_per_pool"),
                    models.CheckConstraint(
                        condition=models.Q(target_tokens=None) | models.Q(target_tokens__gte=1), name="curve_has_target"
                    ),
                ],
            },
        ),
        migrations.RunSQL(PROTECT, RELEASE),
        migrations.RunPython(keep_what_was_set, migrations.RunPython.noop),
    ]
