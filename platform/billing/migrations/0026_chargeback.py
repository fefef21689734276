"""Chargeback: lines of closed months by project, and codes of the general ledger."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import F, Q
from django.db.models.functions import Cast, Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

LINE = "billing_monthprojectline"
APPEND_ONLY = f"""
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {LINE}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


class Migration(migrations.Migration):
    """Expand: new tables."""

    dependencies: ClassVar = [("billing", "0025_credits")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="MonthProjectLine",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                (
                    "closing",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="project_lines",
                        to="billing.billingmonth",
                    ),
                ),
                ("tenant_id", models.UUIDField()),
                ("project_id", models.UUIDField()),
                ("position", models.PositiveIntegerField()),
                ("adjusts_month", models.CharField(blank=True, default="", max_length=7)),
                ("model_name", models.CharField(max_length=200)),
                ("token_class", models.CharField(max_length=16)),
                ("priority", models.CharField(max_length=16)),
                ("quantity", models.PositiveBigIntegerField()),
                ("unit_price_pico", models.PositiveBigIntegerField()),
                ("amount_pico", models.DecimalField(decimal_places=0, max_digits=38)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("closing", "position"), name="month_project_line_once"),
                    models.CheckConstraint(
                        condition=Q(
                            amount_pico=Cast("quantity", models.DecimalField(decimal_places=0, max_digits=38))
                            * F("unit_price_pico")
                        ),
                        name="month_project_line_is_quantity_times_price",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="GlCode",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("line_class", models.CharField(blank=True, default="", max_length=16)),
                ("model_name", models.CharField(blank=True, default="", max_length=200)),
                ("code", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("line_class", "model_name"), name="gl_code_once"),
                    models.CheckConstraint(condition=~Q(code=""), name="gl_code_not_empty"),
                ],
            },
        ),
        migrations.RunSQL(enable_sql(LINE), disable_sql(LINE)),
        migrations.RunSQL(APPEND_ONLY, f"DROP TRIGGER append_only ON {LINE}"),
    ]
