"""The content log: prompts and answers of projects that keep them, sealed."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

TABLE = "tenants_contententry"


class Migration(migrations.Migration):
    """One table, and two columns of projects. A process that does not know them keeps nothing."""

    dependencies: ClassVar = [("tenants", "0022_earlier_names")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("project", "content_log_days", models.PositiveSmallIntegerField(blank=True, null=True)),
        migrations.AddField("project", "content_erased_at", models.DateTimeField(blank=True, null=True)),
        migrations.CreateModel(
            name="ContentEntry",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("sealed", models.BinaryField()),
                ("pepper_version", models.PositiveSmallIntegerField()),
                ("bytes", models.PositiveIntegerField()),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="tenants.project",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["project", "id"], include=("bytes",), name="content_by_project"),
                ],
                "verbose_name_plural": "content entries",
            },
        ),
        migrations.RunSQL(enable_sql(TABLE), disable_sql(TABLE)),
    ]
