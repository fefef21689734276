"""The outbox of events."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Q
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql


class Migration(migrations.Migration):
    """One table, of which a tenant reads its own rows."""

    initial = True
    dependencies: ClassVar = [("tenants", "0015_scrape_tokens")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("type", models.CharField(max_length=100)),
                ("subject", models.CharField(max_length=200)),
                ("data", models.JSONField()),
                ("dedupe_key", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("dispatched_at", models.DateTimeField(null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="events",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant", "-id"], name="events_by_tenant"),
                    models.Index(fields=["id"], condition=Q(dispatched_at=None), name="events_to_dispatch"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("type", "tenant", "dedupe_key"), nulls_distinct=False, name="event_once"
                    )
                ],
            },
        ),
        migrations.RunSQL(enable_sql("notifications_event"), disable_sql("notifications_event")),
    ]
