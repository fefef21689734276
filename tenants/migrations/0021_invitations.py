"""Invitations, and members whose keys are confined to some projects."""

from typing import ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

TABLE = "tenants_invitation"
ROLES = [
    ("owner", "Owner"),
    ("admin", "Admin"),
    ("billing", "Billing"),
    ("developer", "Developer"),
    ("viewer", "Viewer"),
]


class Migration(migrations.Migration):
    """One table and one column. A process that does not know the role admin gives such a member a viewer's rights."""

    dependencies: ClassVar = [("tenants", "0020_operator_roles")]
    operations: ClassVar[list[Operation]] = [
        migrations.AlterField("membership", "role", models.CharField(choices=ROLES, default="viewer", max_length=16)),
        migrations.AddField(
            "membership",
            "project_ids",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.UUIDField(), blank=True, db_default=[], default=list, size=None
            ),
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("public_id", models.CharField(max_length=16, unique=True)),
                ("role", models.CharField(max_length=16)),
                ("email", models.CharField(blank=True, default="", max_length=254)),
                ("secret_hmac", models.BinaryField(max_length=32)),
                ("pepper_version", models.PositiveSmallIntegerField()),
                ("created_by", models.CharField(max_length=200)),
                ("accepted_by", models.CharField(blank=True, default="", max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("expires_at", models.DateTimeField()),
                ("accepted_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="invitations",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(models.F("tenant"), models.F("id").desc(), name="invitations_by_tenant"),
                ],
            },
        ),
        migrations.RunSQL(enable_sql(TABLE), disable_sql(TABLE)),
    ]
