"""Changes for many tenants that the role background makes one after the other."""

from typing import ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids


class Migration(migrations.Migration):
    """Expand: new tables, which tenants do not read."""

    dependencies: ClassVar = [("billing", "0049_credit_of_undone_payments")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="BillingRun",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=16)),
                ("month", models.CharField(blank=True, default="", max_length=7)),
                ("actor_kind", models.CharField(max_length=8)),
                ("actor", models.CharField(max_length=200)),
                ("request_id", models.UUIDField(null=True)),
                (
                    "requested_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("stopped_by", models.CharField(blank=True, default="", max_length=200)),
                ("finished_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [models.Index(fields=["kind", "month", "-id"], name="billing_runs_by_month")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("finished_at", None)),
                        fields=("kind", "month"),
                        name="one_billing_run_at_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BillingRunPart",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("subject_id", models.UUIDField()),
                ("outcome", models.CharField(default="waiting", max_length=16)),
                ("tries", models.SmallIntegerField(default=0)),
                ("text", models.CharField(blank=True, default="", max_length=500)),
                ("done_at", models.DateTimeField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="parts", to="billing.billingrun"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("outcome", "waiting")),
                        fields=["run", "id"],
                        name="billing_run_parts_waiting",
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("run", "subject_id"), name="billing_run_part_once")],
            },
        ),
    ]
