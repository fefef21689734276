"""Credit: requests that a second person may have to approve, and entries that never change.

No part of a tenant's credit, prepaid or of one promotion, is ever below zero.
"""

from importlib import import_module
from typing import Any, ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import F, Q
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

_guards: Any = import_module("billing.migrations.0008_usage_only_grows")

REQUEST, ENTRY = "billing_creditrequest", "billing_creditentry"
DECIDED = """OLD.state = 'pending' AND NEW.state IN ('posted', 'rejected')
        AND to_jsonb(NEW) - ARRAY['state', 'decided_by', 'decided_at']
            = to_jsonb(OLD) - ARRAY['state', 'decided_by', 'decided_at']"""
APPEND_ONLY = f"""
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {ENTRY}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""
NOT_BELOW_ZERO = f"""
    CREATE FUNCTION hearth_credit_not_below_zero() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT sum(amount_pico) FROM {ENTRY} WHERE tenant_id = NEW.tenant_id
            AND promotion_id IS NOT DISTINCT FROM NEW.promotion_id) < 0 THEN
            RAISE EXCEPTION 'credit of tenant % would be below zero', NEW.tenant_id USING ERRCODE = 'check_violation';
        END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER not_below_zero AFTER INSERT ON {ENTRY}
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hearth_credit_not_below_zero();
"""
MAYBE_BELOW_ZERO = f"DROP TRIGGER not_below_zero ON {ENTRY}; DROP FUNCTION hearth_credit_not_below_zero()"


class Migration(migrations.Migration):
    """Expand: new tables, and kinds of accounts, which the database does not list."""

    dependencies: ClassVar = [("billing", "0024_invoices")]
    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            "ledgeraccount",
            "kind",
            models.CharField(
                choices=[
                    ("receivable", "Receivable"),
                    ("revenue", "Revenue"),
                    ("rounding", "Rounding"),
                    ("tax", "Tax"),
                    ("cash", "Cash"),
                    ("prepaid", "Prepaid"),
                    ("promotion", "Promotion"),
                    ("promotion_cost", "Promotion Cost"),
                ],
                max_length=16,
            ),
        ),
        migrations.CreateModel(
            name="CreditEntry",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("top_up", "Top Up"),
                            ("promotion", "Promotion"),
                            ("refund", "Refund"),
                            ("correction", "Correction"),
                            ("reversal", "Reversal"),
                            ("expired", "Expired"),
                            ("applied", "Applied"),
                            ("unapplied", "Unapplied"),
                        ],
                        max_length=16,
                    ),
                ),
                ("amount_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("currency", models.CharField(max_length=3)),
                ("expires_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "closing",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="credit_entries",
                        to="billing.billingmonth",
                    ),
                ),
                (
                    "promotion",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="billing.creditentry",
                    ),
                ),
                (
                    "refers_to",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="referring",
                        to="billing.creditentry",
                    ),
                ),
                (
                    "transaction",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="credit_entry",
                        to="billing.ledgertransaction",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "credit entries",
                "indexes": [models.Index(fields=["tenant_id", "promotion"], name="credit_entries_by_promotion")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=Q(kind="reversal") | Q(kind="unapplied"),
                        fields=("refers_to",),
                        name="credit_entry_reversed_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="CreditRequest",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("key", models.CharField(max_length=200)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("top_up", "Top Up"),
                            ("promotion", "Promotion"),
                            ("refund", "Refund"),
                            ("correction", "Correction"),
                            ("reversal", "Reversal"),
                        ],
                        max_length=16,
                    ),
                ),
                ("amount_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("currency", models.CharField(max_length=3)),
                ("expires_at", models.DateTimeField(null=True)),
                ("reason", models.CharField(blank=True, default="", max_length=500)),
                ("reference", models.CharField(blank=True, default="", max_length=200)),
                ("needs_approval", models.BooleanField()),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("posted", "Posted"), ("rejected", "Rejected")], max_length=8
                    ),
                ),
                ("requested_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("decided_by", models.CharField(blank=True, default="", max_length=200)),
                ("decided_at", models.DateTimeField(null=True)),
                (
                    "refers_to",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="billing.creditentry",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["state", "-id"], name="credit_requests_by_state")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "key"), name="credit_request_once"),
                    models.CheckConstraint(
                        condition=~Q(state="posted")
                        | Q(needs_approval=False)
                        | (~Q(decided_by="") & ~Q(decided_by=F("requested_by")) & Q(decided_at__isnull=False)),
                        name="credit_approved_by_a_second_person",
                    ),
                ],
            },
        ),
        migrations.AddField(
            "creditentry",
            "request",
            models.OneToOneField(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="entry",
                to="billing.creditrequest",
            ),
        ),
        migrations.RunSQL(enable_sql(REQUEST), disable_sql(REQUEST)),
        migrations.RunSQL(enable_sql(ENTRY), disable_sql(ENTRY)),
        migrations.RunSQL(
            _guards.guard(REQUEST, DECIDED, "a decision changes a request that waits for one"), _guards.unguard(REQUEST)
        ),
        migrations.RunSQL(APPEND_ONLY, f"DROP TRIGGER append_only ON {ENTRY}"),
        migrations.RunSQL(NOT_BELOW_ZERO, MAYBE_BELOW_ZERO),
    ]
