"""Tokens with which machines join."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids


class Migration(migrations.Migration):
    """One table. It holds nothing secret, and nodes may not read it."""

    dependencies: ClassVar = [("workers", "0035_node_certificates")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            "NodeToken",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("node_name", models.CharField(blank=True, default="", max_length=200)),
                ("pepper_version", models.PositiveIntegerField()),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                ("used_by", models.CharField(blank=True, default="", max_length=200)),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="node_tokens", to="workers.pool"
                    ),
                ),
            ],
        ),
    ]
