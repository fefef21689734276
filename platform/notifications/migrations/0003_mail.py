"""E-mails, and what people refuse."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Q
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import TENANT_ROLE

#: A table with tenants, for operators and for the person alone: no tenant reads it.
PROTECT = f"""
    ALTER TABLE notifications_mail ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON notifications_mail
        USING (current_user <> '{TENANT_ROLE}') WITH CHECK (current_user <> '{TENANT_ROLE}');
"""
RELEASE = """
    DROP POLICY platform_sees_all ON notifications_mail;
    ALTER TABLE notifications_mail DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """Expand: new tables."""

    dependencies: ClassVar = [
        ("notifications", "0002_webhooks"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="Mail",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("address", models.CharField(max_length=254)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("sent", "Sent"),
                            ("skipped", "Skipped"),
                            ("failed", "Failed"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("note", models.CharField(blank=True, default="", max_length=300)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("next_attempt_at", models.DateTimeField(db_default=Now())),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("sent_at", models.DateTimeField(null=True)),
                (
                    "event",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="mails", to="notifications.event"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mails",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(condition=Q(state="pending"), fields=["next_attempt_at"], name="mails_due"),
                    models.Index(fields=["user", "-created_at"], name="mails_by_user"),
                ],
                "constraints": [models.UniqueConstraint(fields=("event", "user"), name="mail_once")],
            },
        ),
        migrations.CreateModel(
            name="MailRefusal",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("event_type", models.CharField(max_length=100)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mail_refusals",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("user", "event_type"), name="mail_refusal_once")],
            },
        ),
        migrations.RunSQL(PROTECT, RELEASE),
    ]
