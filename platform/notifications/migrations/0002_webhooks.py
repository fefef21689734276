"""Webhook endpoints, their secrets, deliveries and attempts. Tenants read their own, but no secret."""

from typing import ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

TABLES = ("notifications_webhookendpoint", "notifications_delivery", "notifications_deliveryattempt")


class Migration(migrations.Migration):
    """Expand: new tables."""

    dependencies: ClassVar = [
        ("notifications", "0001_events"),
        ("tenants", "0015_scrape_tokens"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="WebhookEndpoint",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("url", models.CharField(max_length=2000)),
                ("about", models.CharField(blank=True, default="", max_length=200)),
                (
                    "event_types",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=100), blank=True, default=list, size=None
                    ),
                ),
                ("is_paused", models.BooleanField(default=False)),
                ("disabled_at", models.DateTimeField(null=True)),
                ("failing_since", models.DateTimeField(null=True)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("resume_at", models.DateTimeField(null=True)),
                ("busy_until", models.DateTimeField(null=True)),
                ("last_tried_at", models.DateTimeField(null=True)),
                ("created_by", models.CharField(max_length=200)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="webhook_endpoints",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("delivered", "Delivered"), ("dead", "Dead")],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("begun_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("next_attempt_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "event",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="deliveries", to="notifications.event"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deliveries",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "endpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="notifications.webhookendpoint",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="WebhookSecret",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("sealed", models.BinaryField()),
                ("pepper_version", models.PositiveSmallIntegerField()),
                ("expires_at", models.DateTimeField(null=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "endpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="secrets",
                        to="notifications.webhookendpoint",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="DeliveryAttempt",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("began_at", models.DateTimeField()),
                ("duration_ms", models.PositiveIntegerField()),
                ("status", models.PositiveSmallIntegerField(null=True)),
                ("answer", models.CharField(blank=True, default="", max_length=1000)),
                ("error", models.CharField(blank=True, default="", max_length=300)),
                (
                    "delivery",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="log", to="notifications.delivery"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["delivery", "-id"], name="attempts_by_delivery")],
            },
        ),
        migrations.AddIndex(
            model_name="webhookendpoint",
            index=models.Index(fields=["tenant", "-id"], name="endpoints_by_tenant"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(fields=["endpoint", "-id"], name="deliveries_by_endpoint"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("state", "pending")), fields=["endpoint", "next_attempt_at"], name="deliveries_due"
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.UniqueConstraint(fields=("endpoint", "event"), name="delivery_once"),
        ),
        migrations.AddConstraint(
            model_name="webhooksecret",
            constraint=models.UniqueConstraint(
                condition=models.Q(("expires_at", None)), fields=("endpoint",), name="one_current_webhook_secret"
            ),
        ),
        *[migrations.RunSQL(enable_sql(table), disable_sql(table)) for table in TABLES],
    ]
