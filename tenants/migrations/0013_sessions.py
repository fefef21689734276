"""Give each tenant's policy what names its sessions, how long they last, and whether they may leave their replica."""

from typing import ClassVar

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("tenants", "0012_audit_says_who_is_an_operator")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "tenantpolicy",
            "session_headers",
            django.contrib.postgres.fields.ArrayField(
                models.CharField(max_length=64),
                blank=True,
                db_default=["x-session-id"],
                default=tenants.models.default_session_headers,
                size=8,
            ),
        ),
        migrations.AddField(
            "tenantpolicy", "session_ttl_seconds", models.PositiveIntegerField(db_default=3600, default=3600)
        ),
        migrations.AddField(
            "tenantpolicy",
            "session_affinity",
            models.CharField(
                choices=[("cheapest", "Cheapest"), ("strict", "Strict")],
                db_default="cheapest",
                default="cheapest",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            "tenantpolicy",
            models.CheckConstraint(
                name="policy_session_ttl_in_range",
                condition=models.Q(session_ttl_seconds__range=(0, 7 * 24 * 3600)),
            ),
        ),
    ]
