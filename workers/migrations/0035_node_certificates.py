"""Certificates of nodes, which engines speak TLS, and which gateways can."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

PROTECT = """
    ALTER TABLE workers_nodecertificate ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON workers_nodecertificate USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON workers_nodecertificate;
    ALTER TABLE workers_nodecertificate DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """One table with row-level security, and three columns; ``workers.node_role`` adds the policies of nodes."""

    dependencies: ClassVar = [("workers", "0034_objectives")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            "NodeCertificate",
            fields=[
                (
                    "node",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="certificate",
                        serialize=False,
                        to="workers.node",
                    ),
                ),
                ("request", models.TextField()),
                ("certificate", models.TextField(blank=True, db_default="", default="")),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("authority", models.CharField(blank=True, db_default="", default="", max_length=16)),
                ("authorities", models.TextField(blank=True, db_default="", default="")),
                ("answered", models.TextField(blank=True, db_default="", default="")),
                ("refusal", models.CharField(blank=True, db_default="", default="", max_length=200)),
            ],
        ),
        migrations.RunSQL(PROTECT, RELEASE),
        migrations.AddField("replica", "tls_generation", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField(
            "gatewayload", "authority", models.CharField(blank=True, db_default="", default="", max_length=16)
        ),
        migrations.AddField("node", "removed_at", models.DateTimeField(blank=True, null=True)),
    ]
