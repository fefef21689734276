"""Responses of the management API that are replayed. No tenant reads them through the database."""

from typing import ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids
from tenants.database.rls import TENANT_ROLE

TABLE = "idempotency_storedresponse"


class Migration(migrations.Migration):
    """Make one table. A process that does not know it runs a change again."""

    initial = True
    dependencies: ClassVar = [("tenants", "0027_language")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="StoredResponse",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("principal", models.CharField(max_length=64)),
                ("slot", models.BinaryField(max_length=32, unique=True)),
                ("request", models.BinaryField(max_length=32)),
                ("rights", models.BinaryField(max_length=32)),
                ("status", models.PositiveSmallIntegerField(null=True)),
                ("sealed", models.BinaryField(null=True)),
                ("pepper_version", models.PositiveSmallIntegerField(null=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["principal", "created_at"], name="stored_by_principal"),
                    models.Index(fields=["created_at"], name="stored_by_age"),
                ],
            },
        ),
        migrations.RunSQL(
            f"""
            ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
            CREATE POLICY platform_sees_all ON {TABLE}
                USING (current_user <> '{TENANT_ROLE}') WITH CHECK (current_user <> '{TENANT_ROLE}');
            """,
            f"DROP POLICY platform_sees_all ON {TABLE};"
            f"ALTER TABLE {TABLE} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;",
        ),
    ]
