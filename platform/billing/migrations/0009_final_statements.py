"""Final statements, and functions by which the roles that run Hearth make and retire partitions of usage.

The functions run as the owner of the tables, so that these roles need no right to change the schema. What may be
retired is checked in the database: usage of a month only when the month and the two after it are over, and every
tenant's requests in it are on a final statement.
"""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

FINAL = "billing_finalstatement"
APPEND_ONLY = f"""
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {FINAL}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""

#: The smallest UUIDv7 of a moment's millisecond, as ``tenants.ids.first_id_at`` returns it.
FIRST_ID = """
    CREATE FUNCTION hearth_first_id_at(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
        SELECT (lpad(to_hex(floor(extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid
    $$;
"""

MAKE = """
    CREATE FUNCTION hearth_make_usage_partition(given date) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        begin_at timestamptz := date_trunc('month', given::timestamp) AT TIME ZONE 'UTC';
        end_at timestamptz := (date_trunc('month', given::timestamp) + interval '1 month') AT TIME ZONE 'UTC';
        low uuid := hearth_first_id_at(begin_at);
        behind uuid := hearth_first_id_at(end_at);
        part text := 'billing_usagerecord_' || to_char(given, 'YYYY_MM');
    BEGIN
        IF to_regclass(part) IS NOT NULL THEN
            RETURN false;
        END IF;
        LOCK TABLE billing_usagerecord IN ACCESS EXCLUSIVE MODE;
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
    REVOKE ALL ON FUNCTION hearth_make_usage_partition(date) FROM PUBLIC;
"""

RETIRE = """
    CREATE FUNCTION hearth_retire_usage_month(given date) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        begin_at timestamptz := date_trunc('month', given::timestamp) AT TIME ZONE 'UTC';
        part text := 'billing_usagerecord_' || to_char(given, 'YYYY_MM');
        open_ones bigint;
        retired bigint;
    BEGIN
        IF to_regclass(part) IS NULL THEN
            RETURN NULL;
        END IF;
        IF begin_at > (date_trunc('month', now() AT TIME ZONE 'UTC') - interval '3 months') AT TIME ZONE 'UTC' THEN
            RAISE EXCEPTION '% and the two months after it are not over', to_char(given, 'YYYY-MM')
                USING ERRCODE = 'restrict_violation';
        END IF;
        EXECUTE format('LOCK TABLE %I IN SHARE MODE', part);
        EXECUTE format(
            'SELECT count(*) FROM (SELECT FROM %I AS r WHERE purpose = ''tenant'' AND refusals = 0 AND ('
            'amount_pico IS NULL OR NOT EXISTS (SELECT FROM billing_finalstatement AS f '
            'WHERE f.tenant_id = r.tenant_id AND f.first_id <= r.id AND r.id < f.behind_id)) LIMIT 1) AS found', part)
            INTO open_ones;
        IF open_ones > 0 THEN
            RAISE EXCEPTION '% has requests that are on no final statement', to_char(given, 'YYYY-MM')
                USING ERRCODE = 'restrict_violation';
        END IF;
        EXECUTE format('SELECT count(*) FROM %I', part) INTO retired;
        EXECUTE format('ALTER TABLE billing_usagerecord DETACH PARTITION %I', part);
        EXECUTE format('DROP TABLE %I', part);
        RETURN retired;
    END $$;
    REVOKE ALL ON FUNCTION hearth_retire_usage_month(date) FROM PUBLIC;
"""

ERASE = """
    CREATE FUNCTION hearth_erase_usage_text(given uuid, after_id uuid, most integer) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        last_id uuid;
    BEGIN
        IF NOT EXISTS (SELECT FROM tenants_tenant WHERE id = given AND state = 'archived') THEN
            RAISE EXCEPTION 'tenant % is not archived', given USING ERRCODE = 'restrict_violation';
        END IF;
        SELECT id INTO last_id FROM (
            SELECT id FROM billing_usagerecord WHERE tenant_id = given AND id > after_id ORDER BY id LIMIT most
        ) AS part ORDER BY id DESC LIMIT 1;
        UPDATE billing_usagerecord SET client_request_id = '', error_message = ''
        WHERE tenant_id = given AND id > after_id AND id <= last_id
            AND (client_request_id <> '' OR error_message <> '');
        RETURN last_id;
    END $$;
    REVOKE ALL ON FUNCTION hearth_erase_usage_text(uuid, uuid, integer) FROM PUBLIC;
"""


class Migration(migrations.Migration):
    """Expand: a new table and functions."""

    dependencies: ClassVar = [("billing", "0008_usage_only_grows")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="FinalStatement",
            fields=[
                (
                    "id",
                    models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("tenant_id", models.UUIDField()),
                ("year", models.PositiveSmallIntegerField()),
                ("month", models.PositiveSmallIntegerField()),
                ("first_id", models.UUIDField()),
                ("behind_id", models.UUIDField()),
                ("document", models.JSONField()),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "year", "month"), name="final_statement_once")
                ],
            },
        ),
        migrations.RunSQL(enable_sql(FINAL), disable_sql(FINAL)),
        migrations.RunSQL(APPEND_ONLY, f"DROP TRIGGER append_only ON {FINAL}"),
        migrations.RunSQL(FIRST_ID, "DROP FUNCTION hearth_first_id_at(timestamptz)"),
        migrations.RunSQL(MAKE, "DROP FUNCTION hearth_make_usage_partition(date)"),
        migrations.RunSQL(RETIRE, "DROP FUNCTION hearth_retire_usage_month(date)"),
        migrations.RunSQL(ERASE, "DROP FUNCTION hearth_erase_usage_text(uuid, uuid, integer)"),
    ]
