"""Leases, retries and repetitions of deferred requests, and the indexes for turns and caps of tenants."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: each column is empty or has a default, so the version before this one goes on writing rows."""

    dependencies: ClassVar = [("workers", "0011_queued_requests")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("deferredrequest", "crashes", models.PositiveSmallIntegerField(default=0, db_default=0)),
        migrations.AddField("deferredrequest", "retry_at", models.DateTimeField(null=True)),
        migrations.AddField("deferredrequest", "lease_until", models.DateTimeField(null=True)),
        migrations.AddField("deferredrequest", "takeover_at", models.DateTimeField(null=True)),
        migrations.AddField("deferredrequest", "idempotency_name", models.BinaryField(null=True, unique=True)),
        migrations.AddField("deferredrequest", "idempotency_request", models.BinaryField(null=True)),
        migrations.AddIndex(
            "deferredrequest", models.Index(fields=("tenant", "state", "created_at"), name="deferred_by_tenant")
        ),
        migrations.AddIndex("deferredrequest", models.Index(fields=("tenant", "started_at"), name="deferred_by_turn")),
        migrations.AddIndex("deferredrequest", models.Index(fields=("expires_at",), name="deferred_by_expiry")),
    ]
