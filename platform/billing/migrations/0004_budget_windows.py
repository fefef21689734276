"""What was spent of each budget per period, and its alerts."""

from typing import ClassVar

import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

ALERTS_GROW = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_budgetalert
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


class Migration(migrations.Migration):
    """Two tables that a tenant may read its own part of; alerts only grow."""

    dependencies: ClassVar = [("billing", "0003_log_positions"), ("tenants", "0004_guards_of_limits")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="BudgetWindow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("budget_id", models.UUIDField()),
                ("tenant_id", models.UUIDField()),
                ("starts_at", models.DateTimeField()),
                ("spent_pico", models.DecimalField(decimal_places=0, default=0, max_digits=38)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("budget_id", "starts_at"), name="budget_window_once"),
                    models.CheckConstraint(condition=models.Q(("spent_pico__gte", 0)), name="spent_not_negative"),
                ],
            },
        ),
        migrations.CreateModel(
            name="BudgetAlert",
            fields=[
                (
                    "id",
                    models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("budget_id", models.UUIDField()),
                ("tenant_id", models.UUIDField()),
                ("starts_at", models.DateTimeField()),
                ("percent", models.PositiveSmallIntegerField()),
                ("spent_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("limit_pico", models.PositiveBigIntegerField()),
                (
                    "raised_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("budget_id", "starts_at", "percent"), name="budget_alert_once"),
                ],
                "indexes": [models.Index(fields=["tenant_id", "-raised_at"], name="alerts_by_tenant")],
            },
        ),
        migrations.RunSQL(ALERTS_GROW, "DROP TRIGGER append_only ON billing_budgetalert"),
        *[
            migrations.RunSQL(enable_sql(table), disable_sql(table))
            for table in ("billing_budgetwindow", "billing_budgetalert")
        ],
    ]
