"""Lines of bank statements and what they paid. What the bank says never changes, and what is assigned only grows."""

from importlib import import_module
from typing import Any, ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids

_guards: Any = import_module("billing.migrations.0008_usage_only_grows")

LINE, ASSIGNMENT = "billing_bankline", "billing_bankassignment"
_NAMES = "'state', 'assigned_cents', 'problem', 'dismissed_by', 'dismissed_at', 'dismiss_reason'"
STEPS = f"""to_jsonb(NEW) - ARRAY[{_NAMES}] = to_jsonb(OLD) - ARRAY[{_NAMES}]
    AND NEW.assigned_cents >= OLD.assigned_cents"""
APPEND_ONLY = f"""
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {ASSIGNMENT}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


class Migration(migrations.Migration):
    """Expand: new tables."""

    dependencies: ClassVar = [
        ("billing", "0029_latency_histograms"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="BankLine",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("bank_account", models.CharField(max_length=64)),
                ("bank_reference", models.CharField(max_length=200)),
                ("booked_on", models.DateField()),
                ("amount_cents", models.BigIntegerField()),
                ("currency", models.CharField(max_length=3)),
                ("payer", models.CharField(blank=True, default="", max_length=200)),
                ("remittance", models.CharField(blank=True, default="", max_length=1000)),
                ("imported_by", models.CharField(max_length=200)),
                (
                    "imported_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("matched", "Matched"), ("dismissed", "Dismissed")],
                        default="open",
                        max_length=16,
                    ),
                ),
                ("assigned_cents", models.BigIntegerField(default=0)),
                ("problem", models.CharField(blank=True, default="", max_length=500)),
                ("dismissed_by", models.CharField(blank=True, default="", max_length=200)),
                ("dismissed_at", models.DateTimeField(null=True)),
                ("dismiss_reason", models.CharField(blank=True, default="", max_length=500)),
            ],
            options={
                "indexes": [models.Index(fields=["state", "-id"], name="bank_lines_by_state")],
                "constraints": [
                    models.UniqueConstraint(fields=("bank_account", "bank_reference"), name="bank_line_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("assigned_cents", 0),
                            models.Q(("assigned_cents__gt", 0), ("assigned_cents__lte", models.F("amount_cents"))),
                            _connector="OR",
                        ),
                        name="bank_line_assigned_within_its_amount",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("amount_cents", 0), _negated=True), name="bank_line_of_something"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("assigned_cents", models.F("amount_cents")), ("state", "matched")),
                            models.Q(
                                models.Q(("state", "matched"), _negated=True),
                                models.Q(("assigned_cents", models.F("amount_cents")), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="bank_line_matched_if_all_is_assigned",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(models.Q(("state", "dismissed"), _negated=True), ("dismissed_at", None)),
                            models.Q(
                                ("dismissed_at__isnull", False),
                                ("state", "dismissed"),
                                models.Q(("dismiss_reason", ""), _negated=True),
                                models.Q(("dismissed_by", ""), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="bank_line_dismissed_with_reason",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BankAssignment",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("assigned_by", models.CharField(max_length=200)),
                (
                    "assigned_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "payment",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="bank_assignment",
                        to="billing.invoicepayment",
                    ),
                ),
                (
                    "line",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="assignments", to="billing.bankline"
                    ),
                ),
            ],
        ),
        migrations.RunSQL(
            _guards.guard(LINE, STEPS, "an assignment or a dismissal changes a line"), _guards.unguard(LINE)
        ),
        migrations.RunSQL(APPEND_ONLY, f"DROP TRIGGER append_only ON {ASSIGNMENT}"),
    ]
