"""Alerts."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Q
from django.db.models.functions import Now

import tenants.ids


class Migration(migrations.Migration):
    """One table, for operators alone."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=32)),
                ("subject", models.CharField(max_length=300)),
                ("host", models.CharField(blank=True, db_default="", default="", max_length=253)),
                ("summary", models.CharField(max_length=500)),
                ("first_seen_at", models.DateTimeField(db_default=Now())),
                ("last_seen_at", models.DateTimeField(db_default=Now())),
                ("raised_at", models.DateTimeField(null=True)),
                ("resolved_at", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=Q(resolved_at=None), fields=("kind", "subject"), name="one_open_alert_of_a_kind"
                    )
                ],
            },
        ),
    ]
