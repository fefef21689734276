"""The results of comparisons."""

from typing import ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from tenants.database.rls import TENANT_ROLE

#: A table with tenants, for operators alone: no tenant reads it.
PROTECT = f"""
    ALTER TABLE reconciliation_bookgap ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON reconciliation_bookgap
        USING (current_user <> '{TENANT_ROLE}') WITH CHECK (current_user <> '{TENANT_ROLE}');
"""
RELEASE = """
    DROP POLICY platform_sees_all ON reconciliation_bookgap;
    ALTER TABLE reconciliation_bookgap DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
"""


class Migration(migrations.Migration):
    """Three tables."""

    initial = True
    dependencies: ClassVar = [
        ("workers", "0037_engine_boots"),
    ]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="Comparison",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("finished_at", models.DateTimeField(null=True)),
                ("boots", models.PositiveIntegerField(default=0)),
                ("boot_gaps", models.PositiveIntegerField(default=0)),
                ("gap_tokens", models.PositiveBigIntegerField(default=0)),
                ("lost_tokens", models.PositiveBigIntegerField(default=0)),
                ("books", models.PositiveIntegerField(default=0)),
                ("book_gaps", models.PositiveIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="BookGap",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("month", models.CharField(max_length=7)),
                ("book", models.CharField(choices=[("ledger", "Ledger"), ("roll-ups", "Rollups")], max_length=16)),
                ("currency", models.CharField(blank=True, default="", max_length=3)),
                ("usage_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("book_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("usage_tokens", models.BigIntegerField(default=0)),
                ("book_tokens", models.BigIntegerField(default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "month", "book", "currency"), name="book_gap_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="BootResult",
            fields=[
                (
                    "boot",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="result",
                        serialize=False,
                        to="workers.engineboot",
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("settling", "Settling"),
                            ("equal", "Equal"),
                            ("bounded", "Bounded"),
                            ("lost", "Lost"),
                            ("gap", "Gap"),
                            ("partial", "Partial"),
                        ],
                        max_length=16,
                    ),
                ),
                ("gap_tokens", models.BigIntegerField(default=0)),
                ("unattributed_tokens", models.BigIntegerField(default=0)),
                ("allowed_tokens", models.BigIntegerField(default=0)),
                ("lost_tokens", models.BigIntegerField(default=0)),
                ("note", models.CharField(blank=True, default="", max_length=500)),
                ("marked_at", models.DateTimeField(blank=True, null=True)),
                ("marked_counted_tokens", models.BigIntegerField(default=0)),
                ("marked_used_tokens", models.BigIntegerField(default=0)),
                ("compared_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "indexes": [models.Index(fields=["state"], name="boot_results_by_state")],
            },
        ),
        migrations.RunSQL(PROTECT, RELEASE),
    ]
