"""Payments that were undone, and rests of bank lines that became credit."""

from importlib import import_module
from typing import Any, ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

_guards: Any = import_module("billing.migrations.0008_usage_only_grows")
_invoices: Any = import_module("billing.migrations.0024_invoices")
_lines: Any = import_module("billing.migrations.0030_bank_lines")

UNDONE, CREDIT = "billing_paymentundone", "billing_bankcredit"
#: An invoice of which a payment is undone is to be paid again, and the line has that much left.
STEPS = _invoices.STEPS.replace("('sent', 'paid'))", "('sent', 'paid'), ('paid', 'final'), ('paid', 'sent'))")
LINE_STEPS = _lines.STEPS.partition("AND NEW.assigned_cents")[0]


def _guard(table: str, condition: str, allowed: str) -> str:
    """Return SQL that replaces the function of a trigger."""
    made: str = _guards.guard(table, condition, allowed)
    return made.partition("CREATE TRIGGER")[0].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


def _append_only(table: str) -> migrations.RunSQL:
    return migrations.RunSQL(
        f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} "
        "FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();",
        f"DROP TRIGGER append_only ON {table}",
    )


class Migration(migrations.Migration):
    """Expand: new tables, and steps that the release before does not take."""

    dependencies: ClassVar = [
        ("billing", "0035_daily_rollups"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            model_name="creditentry",
            name="kind",
            field=models.CharField(
                choices=[
                    ("top_up", "Top Up"),
                    ("promotion", "Promotion"),
                    ("refund", "Refund"),
                    ("correction", "Correction"),
                    ("reversal", "Reversal"),
                    ("expired", "Expired"),
                    ("applied", "Applied"),
                    ("unapplied", "Unapplied"),
                    ("overpaid", "Overpaid"),
                    ("transfer", "Transfer"),
                ],
                max_length=16,
            ),
        ),
        migrations.CreateModel(
            name="BankCredit",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("kept_by", models.CharField(max_length=200)),
                ("kept_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                (
                    "entry",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="bank_credit",
                        to="billing.creditentry",
                    ),
                ),
                (
                    "line",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="credits", to="billing.bankline"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="PaymentUndone",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("reason", models.CharField(max_length=500)),
                ("undone_by", models.CharField(max_length=200)),
                (
                    "undone_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "payment",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="undone", to="billing.invoicepayment"
                    ),
                ),
                (
                    "transaction",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="payment_undone",
                        to="billing.ledgertransaction",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "payments undone",
            },
        ),
        migrations.RunSQL(enable_sql(UNDONE), disable_sql(UNDONE)),
        _append_only(UNDONE),
        _append_only(CREDIT),
        migrations.RunSQL(
            _guard(_invoices.INVOICE, STEPS, "a step changes an invoice"),
            _guard(_invoices.INVOICE, _invoices.STEPS, "a step changes an invoice"),
        ),
        migrations.RunSQL(
            _guard(_lines.LINE, LINE_STEPS, "an assignment or a dismissal changes a line"),
            _guard(_lines.LINE, _lines.STEPS, "an assignment or a dismissal changes a line"),
        ),
    ]
