"""Tokens that open service discovery for Prometheus, and nothing else."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids


class Migration(migrations.Migration):
    """One table. A process that does not know it refuses its tokens."""

    dependencies: ClassVar = [("tenants", "0014_priority_and_weight")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            "ScrapeToken",
            [
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("public_id", models.CharField(max_length=16, unique=True)),
                ("name", models.CharField(max_length=200)),
                ("secret_hmac", models.BinaryField(max_length=32)),
                ("pepper_version", models.PositiveSmallIntegerField()),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(null=True)),
            ],
        )
    ]
