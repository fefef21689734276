"""Closed months with frozen lines, and a trigger that makes a late posting an adjustment of a later month.

The trigger works for every release that posts, so that one before this may run beside it.
"""

from importlib import import_module
from typing import Any, ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import F, Q
from django.db.models.functions import Cast, Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

_guards: Any = import_module("billing.migrations.0008_usage_only_grows")

MONTH, LINE, LATE = "billing_billingmonth", "billing_monthline", "billing_lateposting"
#: What reopening sets: first the request, then its confirmation.
REOPENING = ("reopen_reason", "reopen_requested_by", "reopen_requested_at", "reopened_by", "reopened_at")
_NAMES = ", ".join(f"'{name}'" for name in REOPENING)
REOPENED = f"""to_jsonb(NEW) - ARRAY[{_NAMES}] = to_jsonb(OLD) - ARRAY[{_NAMES}] AND OLD.reopened_at IS NULL
    AND (OLD.reopen_requested_at IS NULL AND NEW.reopen_requested_at IS NOT NULL AND NEW.reopened_at IS NULL
        OR NEW.reopened_at IS NOT NULL
            AND (NEW.reopen_reason, NEW.reopen_requested_by, NEW.reopen_requested_at)
                = (OLD.reopen_reason, OLD.reopen_requested_by, OLD.reopen_requested_at))"""

#: A closing takes this lock alone, a late posting takes it with others, so each posting is on one statement. A month
#: closes an hour after its end at the earliest, so postings of the last half hour need neither lock nor look-up.
LATE_POSTINGS = """
    CREATE FUNCTION hearth_note_late_posting() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        request_id uuid := substr(NEW.source, 7)::uuid;
        last billing_billingmonth;
        moment timestamptz;
    BEGIN
        IF request_id >= hearth_first_id_at(now() - interval '30 minutes') THEN
            RETURN NULL;
        END IF;
        PERFORM pg_advisory_xact_lock_shared(x'6d6f6e'::int, hashtext(NEW.tenant_id::text));
        SELECT * INTO last FROM billing_billingmonth
        WHERE tenant_id = NEW.tenant_id AND reopened_at IS NULL ORDER BY behind_id DESC LIMIT 1;
        IF last.id IS NULL OR request_id >= last.behind_id THEN
            RETURN NULL;
        END IF;
        moment := to_timestamp(
            ('x' || lpad(substr(replace(request_id::text, '-', ''), 1, 12), 16, '0'))::bit(64)::bigint / 1000.0);
        INSERT INTO billing_lateposting (id, transaction_id, tenant_id, month, billed_month) VALUES (
            gen_random_uuid(), NEW.id, NEW.tenant_id, to_char(moment AT TIME ZONE last.timezone, 'YYYY-MM'),
            to_char(make_date(last.year, last.month, 1) + interval '1 month', 'YYYY-MM'));
        RETURN NULL;
    END $$;
    CREATE TRIGGER late_postings AFTER INSERT ON billing_ledgertransaction
        FOR EACH ROW WHEN (NEW.kind = 'usage' AND NEW.source LIKE 'usage:%')
        EXECUTE FUNCTION hearth_note_late_posting();
"""
NO_LATE_POSTINGS = """
    DROP TRIGGER late_postings ON billing_ledgertransaction; DROP FUNCTION hearth_note_late_posting()
"""
APPEND_ONLY = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""

RETIRE_BEFORE: str = import_module("billing.migrations.0011_retire_at_once").Migration.operations[0].sql
_FINAL_ONLY = """NOT EXISTS (SELECT FROM billing_finalstatement AS f '
            'WHERE f.tenant_id = r.tenant_id AND f.first_id <= r.id AND r.id < f.behind_id)) LIMIT 1) AS found', part)
            INTO open_ones;
"""
_CLOSED_TOO = """NOT EXISTS (SELECT FROM billing_finalstatement AS f '
            'WHERE f.tenant_id = r.tenant_id AND f.first_id <= r.id AND r.id < f.behind_id) AND NOT EXISTS ('
            'SELECT FROM billing_billingmonth AS m WHERE m.tenant_id = r.tenant_id AND m.reopened_at IS NULL '
            'AND m.first_id <= r.id AND r.id < m.behind_id)) LIMIT 1) AS found', part)
            INTO open_ones;
        IF open_ones = 0 THEN
            -- late requests are on the statement of a later month, which must be closed too
            SELECT count(*) INTO open_ones FROM billing_lateposting AS l
            JOIN billing_ledgertransaction AS t ON t.id = l.transaction_id
            WHERE l.month BETWEEN to_char(given::timestamp - interval '1 month', 'YYYY-MM')
                AND to_char(given::timestamp + interval '1 month', 'YYYY-MM')
            AND substr(t.source, 7)::uuid >= hearth_first_id_at(begin_at)
            AND substr(t.source, 7)::uuid < hearth_first_id_at(
                (date_trunc('month', given::timestamp) + interval '1 month') AT TIME ZONE 'UTC')
            AND NOT EXISTS (SELECT FROM billing_billingmonth AS m WHERE m.tenant_id = l.tenant_id
                AND m.reopened_at IS NULL AND l.billed_month = m.year || '-' || lpad(m.month::text, 2, '0'));
        END IF;
"""
_REASON, _OWN_REASON = "has requests that are on no final statement", "has requests of months that are not closed"
RETIRE = RETIRE_BEFORE.replace(_FINAL_ONLY, _CLOSED_TOO).replace(_REASON, _OWN_REASON)


class Migration(migrations.Migration):
    """Expand: new tables, a nullable column, a trigger, and a condition more under which a month may be retired."""

    dependencies: ClassVar = [("billing", "0016_boot_usage")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("waloffset", "caught_up_at", models.DateTimeField(null=True)),
        migrations.CreateModel(
            name="BillingMonth",
            fields=[
                (
                    "id",
                    models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("tenant_id", models.UUIDField()),
                ("year", models.PositiveSmallIntegerField()),
                ("month", models.PositiveSmallIntegerField()),
                ("revision", models.PositiveSmallIntegerField()),
                ("timezone", models.CharField(max_length=63)),
                ("currency", models.CharField(max_length=3)),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("first_id", models.UUIDField()),
                ("behind_id", models.UUIDField()),
                ("grace_hours", models.PositiveSmallIntegerField()),
                ("amount_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("document", models.JSONField()),
                ("closed_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("closed_by", models.CharField(max_length=200)),
                ("reopen_reason", models.CharField(blank=True, db_default="", default="", max_length=500)),
                ("reopen_requested_by", models.CharField(blank=True, db_default="", default="", max_length=200)),
                ("reopen_requested_at", models.DateTimeField(null=True)),
                ("reopened_by", models.CharField(blank=True, db_default="", default="", max_length=200)),
                ("reopened_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [models.Index(fields=["tenant_id", "behind_id"], name="months_by_tenant")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant_id", "year", "month", "revision"), name="month_revision_once"
                    ),
                    models.UniqueConstraint(
                        condition=Q(reopened_at=None), fields=("tenant_id", "year", "month"), name="month_closed_once"
                    ),
                    models.CheckConstraint(
                        condition=Q(reopened_at=None)
                        | (
                            Q(reopen_requested_at__isnull=False)
                            & ~Q(reopen_reason="")
                            & ~Q(reopened_by="")
                            & ~Q(reopened_by=F("reopen_requested_by"))
                        ),
                        name="reopened_by_a_second_person",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MonthLine",
            fields=[
                (
                    "id",
                    models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "closing",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="lines", to="billing.billingmonth"
                    ),
                ),
                ("tenant_id", models.UUIDField()),
                ("position", models.PositiveIntegerField()),
                ("adjusts_month", models.CharField(blank=True, db_default="", default="", max_length=7)),
                ("model_name", models.CharField(max_length=200)),
                ("token_class", models.CharField(max_length=16)),
                ("quantity", models.PositiveBigIntegerField()),
                ("unit_price_pico", models.PositiveBigIntegerField()),
                ("amount_pico", models.DecimalField(decimal_places=0, max_digits=38)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("closing", "position"), name="month_line_once"),
                    models.CheckConstraint(
                        condition=Q(
                            amount_pico=Cast("quantity", models.DecimalField(decimal_places=0, max_digits=38))
                            * F("unit_price_pico")
                        ),
                        name="month_line_is_quantity_times_price",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LatePosting",
            fields=[
                (
                    "id",
                    models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "transaction",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="late",
                        to="billing.ledgertransaction",
                    ),
                ),
                ("tenant_id", models.UUIDField()),
                ("month", models.CharField(max_length=7)),
                ("billed_month", models.CharField(max_length=7)),
            ],
            options={"indexes": [models.Index(fields=["tenant_id", "billed_month"], name="late_by_billed_month")]},
        ),
        *[migrations.RunSQL(enable_sql(table), disable_sql(table)) for table in (MONTH, LINE, LATE)],
        migrations.RunSQL(_guards.guard(MONTH, REOPENED, "reopening changes a closing"), _guards.unguard(MONTH)),
        *[
            migrations.RunSQL(APPEND_ONLY.format(table=table), f"DROP TRIGGER append_only ON {table}")
            for table in (LINE, LATE)
        ],
        migrations.RunSQL(LATE_POSTINGS, NO_LATE_POSTINGS),
        migrations.RunSQL(RETIRE, RETIRE_BEFORE),
    ]
