"""Plans: terms with effective months, the plan of each tenant, and what closings made of them.

A version's month and a tenant's are unique, and each holds until the next, so no two overlap. Rows whose month has
begun anywhere on earth stay as they are.
"""

from importlib import import_module
from typing import Any, ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Q
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

_guards: Any = import_module("billing.migrations.0008_usage_only_grows")

PLAN, VERSION, TENANT_PLAN, LINE = "billing_plan", "billing_planversion", "billing_tenantplan", "billing_monthtermsline"
_TENANT = "current_setting('hearth.tenant_id')::uuid"
#: A tenant reads the plans that are assigned to it.
_ASSIGNED = f"IN (SELECT plan_id FROM {TENANT_PLAN} WHERE tenant_id = {_TENANT})"
APPEND_ONLY = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


def _not_begun(column: str) -> str:
    return f"""OLD.from_month > (now() AT TIME ZONE 'UTC' + interval '14 hours')::date
        AND to_jsonb(NEW) - '{column}' = to_jsonb(OLD) - '{column}'"""


class Migration(migrations.Migration):
    """Expand: new tables."""

    dependencies: ClassVar = [("billing", "0019_traced_requests")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="Plan",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("name", models.SlugField(max_length=63, unique=True)),
                ("tenant_id", models.UUIDField(null=True)),
                ("currency", models.CharField(max_length=3)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
        ),
        migrations.CreateModel(
            name="MonthTermsLine",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("billed_month", models.CharField(max_length=7)),
                ("position", models.PositiveIntegerField()),
                ("is_reversal", models.BooleanField(default=False)),
                ("kind", models.CharField(max_length=16)),
                ("text", models.CharField(max_length=300)),
                ("tokens", models.PositiveBigIntegerField(null=True)),
                ("amount_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                (
                    "closing",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="terms_lines",
                        to="billing.billingmonth",
                    ),
                ),
                (
                    "transaction",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="terms_line",
                        to="billing.ledgertransaction",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant_id", "billed_month"], name="terms_lines_by_month")],
                "constraints": [
                    models.UniqueConstraint(fields=("closing", "position", "is_reversal"), name="month_terms_line_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="PlanVersion",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("from_month", models.DateField()),
                ("terms", models.JSONField()),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "plan",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="versions", to="billing.plan"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("plan", "from_month"), name="plan_version_once"),
                    models.CheckConstraint(condition=Q(from_month__day=1), name="plan_version_from_first_day"),
                ],
            },
        ),
        migrations.CreateModel(
            name="TenantPlan",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("from_month", models.DateField()),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "plan",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="tenants",
                        to="billing.plan",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "from_month"), name="tenant_plan_once"),
                    models.CheckConstraint(condition=Q(from_month__day=1), name="tenant_plan_from_first_day"),
                ],
            },
        ),
        migrations.RunSQL(enable_sql(TENANT_PLAN), disable_sql(TENANT_PLAN)),
        migrations.RunSQL(enable_sql(LINE), disable_sql(LINE)),
        migrations.RunSQL(enable_sql(PLAN, f"id {_ASSIGNED}"), disable_sql(PLAN)),
        migrations.RunSQL(enable_sql(VERSION, f"plan_id {_ASSIGNED}"), disable_sql(VERSION)),
        migrations.RunSQL(
            _guards.guard(VERSION, _not_begun("terms"), "terms change before their month begins"),
            _guards.unguard(VERSION),
        ),
        migrations.RunSQL(
            _guards.guard(TENANT_PLAN, _not_begun("plan_id"), "a plan changes before its month begins"),
            _guards.unguard(TENANT_PLAN),
        ),
        *[
            migrations.RunSQL(APPEND_ONLY.format(table=table), f"DROP TRIGGER append_only ON {table}")
            for table in (PLAN, LINE)
        ],
    ]
