"""Payments of invoices that failed."""

from typing import ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

FAILURE = "billing_paymentfailure"
APPEND_ONLY = f"""
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {FAILURE}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


class Migration(migrations.Migration):
    """Expand: a new table."""

    dependencies: ClassVar = [
        ("billing", "0031_overpaid_credit"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="PaymentFailure",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("reference", models.CharField(max_length=200)),
                ("reason", models.CharField(max_length=500)),
                ("failed_on", models.DateField()),
                (
                    "recorded_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "invoice",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="payment_failures",
                        to="billing.invoice",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("invoice", "reference"), name="payment_failure_once"),
                ],
            },
        ),
        migrations.RunSQL(enable_sql(FAILURE), disable_sql(FAILURE)),
        migrations.RunSQL(APPEND_ONLY, f"DROP TRIGGER append_only ON {FAILURE}"),
    ]
