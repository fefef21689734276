"""What is done about invoices that are not paid in time."""

from typing import ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

PROTECTED = ("billing_dunningcase", "billing_dunninghold", "billing_dunningpolicy", "billing_dunningstep")
APPEND_ONLY = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_dunningstep
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


class Migration(migrations.Migration):
    """Expand: new tables."""

    dependencies: ClassVar = [
        ("billing", "0033_appended_histograms"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="DunningRun",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(null=True)),
                ("steps", models.PositiveIntegerField(default=0)),
                ("failures", models.PositiveIntegerField(default=0)),
            ],
            options={
                "indexes": [models.Index(fields=["-started_at"], name="dunning_runs_by_start")],
            },
        ),
        migrations.CreateModel(
            name="DunningCase",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("starts_on", models.DateField()),
                ("suspends_since", models.DateTimeField(null=True)),
                (
                    "next_kind",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("reminder", "Reminder"),
                            ("second_reminder", "Second Reminder"),
                            ("notice", "Notice"),
                            ("suspension", "Suspension"),
                        ],
                        default="",
                        max_length=16,
                    ),
                ),
                ("next_on", models.DateField(null=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "invoice",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="dunning_case", to="billing.invoice"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("suspends_since__isnull", False)),
                        fields=["tenant_id"],
                        name="dunning_cases_that_suspend",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DunningHold",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("reason", models.CharField(max_length=500)),
                ("until", models.DateField(null=True)),
                ("created_by", models.CharField(max_length=200)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("ended_by", models.CharField(blank=True, default="", max_length=200)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "invoice",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="dunning_holds",
                        to="billing.invoice",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("tenant_id", "invoice"),
                        name="one_dunning_hold_at_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DunningPolicy",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField(null=True, unique=True)),
                ("reminder_days", models.PositiveSmallIntegerField(null=True)),
                ("second_reminder_days", models.PositiveSmallIntegerField(null=True)),
                ("notice_days", models.PositiveSmallIntegerField(null=True)),
                ("suspension_days", models.PositiveSmallIntegerField(null=True)),
                ("least_open_cents", models.PositiveBigIntegerField(default=1)),
                ("updated_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "issuer",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="dunning_policy",
                        to="billing.issuer",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "dunning policies",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("issuer", None), ("tenant_id__isnull", False)),
                            models.Q(("issuer__isnull", False), ("tenant_id", None)),
                            _connector="OR",
                        ),
                        name="dunning_policy_of_one",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("suspension_days", None), ("notice_days__lt", models.F("suspension_days")), _connector="OR"
                        ),
                        name="dunning_suspends_after_a_notice",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="DunningStep",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("reminder", "Reminder"),
                            ("second_reminder", "Second Reminder"),
                            ("notice", "Notice"),
                            ("suspension", "Suspension"),
                        ],
                        max_length=16,
                    ),
                ),
                ("taken_on", models.DateField()),
                (
                    "taken_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "invoice",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="dunning_steps", to="billing.invoice"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("invoice", "kind"), name="dunning_step_once")],
            },
        ),
        *[migrations.RunSQL(enable_sql(table), disable_sql(table)) for table in PROTECTED],
        migrations.RunSQL(APPEND_ONLY, "DROP TRIGGER append_only ON billing_dunningstep"),
    ]
