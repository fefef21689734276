"""Partitions of usage by day, and exports without which no partition with rows is retired.

Months that have a partition with rows keep it. An empty one is replaced by days. The functions that the release before
calls stay: the one that makes months makes days, and the one that retires a month requires its export too.
"""

from importlib import import_module
from typing import Any, ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids

_guards: Any = import_module("billing.migrations.0008_usage_only_grows")

EXPORT = "billing_usageexport"
DAYS_AHEAD = 14

MAKE_DAY = """
    CREATE FUNCTION hearth_make_usage_day(given date) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        low uuid := hearth_first_id_at(given::timestamp AT TIME ZONE 'UTC');
        behind uuid := hearth_first_id_at((given + 1)::timestamp AT TIME ZONE 'UTC');
        part text := 'billing_usagerecord_' || to_char(given, 'YYYY_MM_DD');
        of_month text := 'billing_usagerecord_' || to_char(given, 'YYYY_MM');
        filled boolean := false;
    BEGIN
        IF to_regclass(part) IS NOT NULL THEN
            RETURN false;
        END IF;
        BEGIN
            IF to_regclass(of_month) IS NOT NULL THEN
                EXECUTE format('SELECT EXISTS (SELECT FROM %I)', of_month) INTO filled;
            END IF;
        EXCEPTION WHEN undefined_table THEN
            NULL;  -- another process replaced it meanwhile
        END;
        IF filled THEN
            RETURN false;
        END IF;
        LOCK TABLE billing_usagerecord IN ACCESS EXCLUSIVE MODE;
        IF to_regclass(part) IS NOT NULL THEN
            RETURN false;  -- another process made it while this one waited for the lock
        END IF;
        IF to_regclass(of_month) IS NOT NULL THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM %I)', of_month) INTO filled;
            IF filled THEN
                RETURN false;
            END IF;
            EXECUTE format('DROP TABLE %I', of_month);
        END IF;
        EXECUTE format('CREATE TABLE %I (LIKE billing_usagerecord INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
        EXECUTE format(
            'WITH moved AS (DELETE FROM billing_usagerecord_default WHERE id >= %L AND id < %L RETURNING *) '
            'INSERT INTO %I SELECT * FROM moved', low, behind, part);
        EXECUTE format(
            'ALTER TABLE billing_usagerecord ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, low, behind);
        -- a partition can be read under its own name, so it needs its own policy
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', part);
        EXECUTE format(
            'CREATE POLICY platform_sees_all ON %I USING (current_user <> ''hearth_tenant'') '
            'WITH CHECK (current_user <> ''hearth_tenant'')', part);
        EXECUTE format(
            'CREATE POLICY tenant_sees_own ON %I FOR SELECT TO hearth_tenant '
            'USING (tenant_id = current_setting(''hearth.tenant_id'')::uuid)', part);
        EXECUTE format('GRANT SELECT ON %I TO hearth_tenant', part);
        RETURN true;
    END $$;
    REVOKE ALL ON FUNCTION hearth_make_usage_day(date) FROM PUBLIC;
"""
#: What is left of days once this migration is undone: their rows, in the default partition.
NO_DAYS = """
    DO $$
    DECLARE
        part regclass;
    BEGIN
        LOCK TABLE billing_usagerecord IN ACCESS EXCLUSIVE MODE;
        FOR part IN
            SELECT inhrelid::regclass FROM pg_inherits JOIN pg_class ON oid = inhrelid
            WHERE inhparent = 'billing_usagerecord'::regclass
            AND relname ~ '^billing_usagerecord_[0-9]{4}_[0-9]{2}_[0-9]{2}$'
        LOOP
            EXECUTE format('ALTER TABLE billing_usagerecord DETACH PARTITION %s', part);
            EXECUTE format('INSERT INTO billing_usagerecord_default SELECT * FROM %s', part);
            EXECUTE format('DROP TABLE %s', part);
        END LOOP;
    END $$;
    DROP FUNCTION hearth_make_usage_day(date);
"""

#: Called by the release before, for this month, the next three, and those with rows in the default partition.
MAKE_MONTH = f"""
    CREATE OR REPLACE FUNCTION hearth_make_usage_partition(given date) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        first date := date_trunc('month', given::timestamp)::date;
        today date := (now() AT TIME ZONE 'UTC')::date;
        made boolean := false;
        day date;
    BEGIN
        FOR day IN SELECT first + each FROM generate_series(0, 30) AS each LOOP
            CONTINUE WHEN date_trunc('month', day::timestamp) <> first;
            IF day BETWEEN today AND today + {DAYS_AHEAD} OR EXISTS (
                SELECT FROM billing_usagerecord_default
                WHERE id >= hearth_first_id_at(day::timestamp AT TIME ZONE 'UTC')
                AND id < hearth_first_id_at((day + 1)::timestamp AT TIME ZONE 'UTC')
            ) THEN
                made := hearth_make_usage_day(day) OR made;
            END IF;
        END LOOP;
        RETURN made;
    END $$;
"""
MAKE_MONTH_BEFORE: str = import_module("billing.migrations.0010_partitions_at_once").Migration.operations[0].sql

RETIRE = """
    CREATE FUNCTION hearth_retire_usage_partition(part text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        parts text[] := regexp_match(part, '^billing_usagerecord_(\\d{4})_(\\d{2})(?:_(\\d{2}))?$');
        first_day date;
        month_name text;
        first_id uuid;
        behind_id uuid;
        open_ones bigint;
        retired bigint;
        export_id uuid;
    BEGIN
        IF parts IS NULL THEN
            RAISE EXCEPTION '% is no partition of a day or a month of usage', part USING ERRCODE = 'restrict_violation';
        END IF;
        IF NOT EXISTS (SELECT FROM pg_inherits
            WHERE inhparent = 'billing_usagerecord'::regclass AND inhrelid = to_regclass(part)) THEN
            RETURN NULL;
        END IF;
        first_day := make_date(parts[1]::int, parts[2]::int, coalesce(parts[3], '01')::int);
        month_name := to_char(first_day, 'YYYY-MM');
        first_id := hearth_first_id_at(first_day::timestamp AT TIME ZONE 'UTC');
        behind_id := hearth_first_id_at((first_day
            + CASE WHEN parts[3] IS NULL THEN interval '1 month' ELSE interval '1 day' END) AT TIME ZONE 'UTC');
        IF date_trunc('month', first_day::timestamp)
            > date_trunc('month', now() AT TIME ZONE 'UTC') - interval '3 months' THEN
            RAISE EXCEPTION '% and the two months after it are not over', month_name
                USING ERRCODE = 'restrict_violation';
        END IF;
        BEGIN
            EXECUTE format('LOCK TABLE %I IN SHARE ROW EXCLUSIVE MODE', part);
        EXCEPTION WHEN undefined_table THEN
            RETURN NULL;  -- another process retired it while this one waited for the lock
        END;
        EXECUTE format(
            'SELECT count(*) FROM (SELECT FROM %I AS r WHERE purpose = ''tenant'' AND refusals = 0 AND ('
            'amount_pico IS NULL OR NOT EXISTS (SELECT FROM billing_finalstatement AS f '
            'WHERE f.tenant_id = r.tenant_id AND f.first_id <= r.id AND r.id < f.behind_id) AND NOT EXISTS ('
            'SELECT FROM billing_billingmonth AS m WHERE m.tenant_id = r.tenant_id AND m.reopened_at IS NULL '
            'AND m.first_id <= r.id AND r.id < m.behind_id)) LIMIT 1) AS found', part)
            INTO open_ones;
        IF open_ones = 0 THEN
            -- late requests are on the statement of a later month, which must be closed too
            SELECT count(*) INTO open_ones FROM billing_lateposting AS l
            JOIN billing_ledgertransaction AS t ON t.id = l.transaction_id
            WHERE l.month BETWEEN to_char(first_day::timestamp - interval '1 month', 'YYYY-MM')
                AND to_char(first_day::timestamp + interval '1 month', 'YYYY-MM')
            AND substr(t.source, 7)::uuid >= first_id AND substr(t.source, 7)::uuid < behind_id
            AND NOT EXISTS (SELECT FROM billing_billingmonth AS m WHERE m.tenant_id = l.tenant_id
                AND m.reopened_at IS NULL AND l.billed_month = m.year || '-' || lpad(m.month::text, 2, '0'));
        END IF;
        IF open_ones > 0 THEN
            RAISE EXCEPTION '% has requests of months that are not closed', month_name
                USING ERRCODE = 'restrict_violation';
        END IF;
        EXECUTE format('SELECT count(*) FROM %I', part) INTO retired;
        IF retired > 0 THEN
            SELECT id INTO export_id FROM billing_usageexport
            WHERE partition = part AND retired_at IS NULL AND rows = retired ORDER BY id DESC LIMIT 1;
            IF export_id IS NULL THEN
                RAISE EXCEPTION 'no export has the % requests of %', retired, part
                    USING ERRCODE = 'restrict_violation';
            END IF;
            UPDATE billing_usageexport SET retired_at = now() WHERE id = export_id;
        END IF;
        EXECUTE format('ALTER TABLE billing_usagerecord DETACH PARTITION %I', part);
        EXECUTE format('DROP TABLE %I', part);
        RETURN retired;
    END $$;
    REVOKE ALL ON FUNCTION hearth_retire_usage_partition(text) FROM PUBLIC;
"""
#: Called by the release before. It makes no exports, so it retires empty months only, and holds the others.
RETIRE_MONTH = """
    CREATE OR REPLACE FUNCTION hearth_retire_usage_month(given date) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
        SELECT hearth_retire_usage_partition('billing_usagerecord_' || to_char(given, 'YYYY_MM'))
    $$;
"""
RETIRE_MONTH_BEFORE: str = import_module("billing.migrations.0017_closed_months").RETIRE


class Migration(migrations.Migration):
    """Expand: a new table, and functions. No table is read or rewritten."""

    dependencies: ClassVar = [("billing", "0017_closed_months")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="UsageExport",
            fields=[
                (
                    "id",
                    models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("partition", models.CharField(max_length=63)),
                ("begins_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("rows", models.PositiveBigIntegerField()),
                ("file_bytes", models.PositiveBigIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                ("node", models.CharField(max_length=253)),
                ("path", models.CharField(max_length=1000)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("retired_at", models.DateTimeField(null=True)),
            ],
            options={"indexes": [models.Index(fields=["partition"], name="exports_by_partition")]},
        ),
        migrations.RunSQL(
            _guards.guard(EXPORT, "false", "retiring a partition changes its export"), _guards.unguard(EXPORT)
        ),
        migrations.RunSQL(MAKE_DAY, NO_DAYS),
        migrations.RunSQL(MAKE_MONTH, MAKE_MONTH_BEFORE),
        migrations.RunSQL(RETIRE, "DROP FUNCTION hearth_retire_usage_partition(text)"),
        migrations.RunSQL(RETIRE_MONTH, RETIRE_MONTH_BEFORE),
    ]
