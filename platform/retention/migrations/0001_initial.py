"""The policy of retention, and functions that delete or erase rows of tables that otherwise only grow.

The functions run as the owner of the tables. The trigger ``append_only`` makes an exception for them alone: it requires
the owner, and a setting that only they make. Each checks what it may delete: rows above a minimum age, or the audit log
of an archived tenant.
"""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

IS_OWNER = "current_user = pg_get_userbyid((SELECT relowner FROM pg_class WHERE oid = TG_RELID))"
REFUSE = """
    CREATE OR REPLACE FUNCTION hearth_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        {exceptions}
        RAISE EXCEPTION '% only grows: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
    END $$;
"""
EXCEPTIONS = f"""
        IF TG_OP = 'DELETE' AND current_setting('hearth.retiring', true) = 'on' AND {IS_OWNER} THEN
            RETURN OLD;
        END IF;
        IF TG_OP = 'UPDATE' AND current_setting('hearth.erasing', true) = 'on' AND {IS_OWNER} THEN
            RETURN NEW;
        END IF;
"""

#: The newest declaration of secrets is what machines compare theirs with when they join.
RETIRE = """
    CREATE FUNCTION hearth_retire_rows(kind text, before timestamptz, most integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        kept text;
        minimum interval;
        retired bigint;
    BEGIN
        CASE kind
            WHEN 'events' THEN kept := 'workers_replicaevent'; minimum := '1 day';
            WHEN 'decisions' THEN kept := 'workers_scaledecision'; minimum := '1 day';
            WHEN 'audit' THEN kept := 'tenants_auditentry'; minimum := '30 days';
            ELSE RAISE EXCEPTION 'there is no kind %', kind USING ERRCODE = 'invalid_parameter_value';
        END CASE;
        IF before > now() - minimum THEN
            RAISE EXCEPTION '% younger than % is kept', kind, minimum USING ERRCODE = 'restrict_violation';
        END IF;
        PERFORM set_config('hearth.retiring', 'on', true);
        EXECUTE format(
            'DELETE FROM %I WHERE id IN (SELECT id FROM %I WHERE id < hearth_first_id_at($1) %s ORDER BY id LIMIT $2)',
            kept, kept, CASE WHEN kind = 'audit' THEN 'AND action <> ''cluster.secrets_declared''' ELSE '' END
        ) USING before, most;
        GET DIAGNOSTICS retired = ROW_COUNT;
        PERFORM set_config('hearth.retiring', 'off', true);
        RETURN retired;
    END $$;
    REVOKE ALL ON FUNCTION hearth_retire_rows(text, timestamptz, integer) FROM PUBLIC;
"""

#: Numbers and switches stay, text goes.
WITHOUT_TEXT = """
    CREATE FUNCTION hearth_without_text(document jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE WHEN document IS NULL THEN NULL ELSE (
            SELECT coalesce(jsonb_object_agg(key,
                CASE WHEN jsonb_typeof(value) IN ('number', 'boolean', 'null') THEN value ELSE '"erased"' END), '{}')
            FROM jsonb_each(document)) END
    $$;
"""

ERASE_AUDIT = """
    CREATE FUNCTION hearth_erase_audit(given uuid, after_id uuid, most integer) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        last_id uuid;
    BEGIN
        IF NOT EXISTS (SELECT FROM tenants_tenant WHERE id = given AND state = 'archived') THEN
            RAISE EXCEPTION 'tenant % is not archived', given USING ERRCODE = 'restrict_violation';
        END IF;
        SELECT id INTO last_id FROM (
            SELECT id FROM tenants_auditentry WHERE tenant_id = given AND id > after_id ORDER BY id LIMIT most
        ) AS part ORDER BY id DESC LIMIT 1;
        PERFORM set_config('hearth.erasing', 'on', true);
        UPDATE tenants_auditentry SET before = hearth_without_text(before), after = hearth_without_text(after)
        WHERE tenant_id = given AND id > after_id AND id <= last_id AND NOT (before IS NULL AND after IS NULL);
        PERFORM set_config('hearth.erasing', 'off', true);
        RETURN last_id;
    END $$;
    REVOKE ALL ON FUNCTION hearth_erase_audit(uuid, uuid, integer) FROM PUBLIC;
"""

#: A name that a user still has stays.
ERASE_PEOPLE = """
    CREATE FUNCTION hearth_erase_people(names text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    DECLARE
        gone text[];
        erased bigint;
    BEGIN
        SELECT array_agg(name) INTO gone FROM unnest(names) AS name
        WHERE NOT EXISTS (SELECT FROM tenants_user WHERE username = name);
        PERFORM set_config('hearth.erasing', 'on', true);
        UPDATE tenants_auditentry SET
            actor = CASE WHEN actor_kind = 'user' AND actor = ANY (gone) THEN 'erased' ELSE actor END,
            before = CASE WHEN before ->> 'person' = ANY (gone) THEN before || '{"person": "erased"}' ELSE before END,
            after = CASE WHEN after ->> 'person' = ANY (gone) THEN after || '{"person": "erased"}' ELSE after END
        WHERE actor_kind = 'user' AND actor = ANY (gone)
            OR before ->> 'person' = ANY (gone) OR after ->> 'person' = ANY (gone);
        GET DIAGNOSTICS erased = ROW_COUNT;
        PERFORM set_config('hearth.erasing', 'off', true);
        RETURN erased;
    END $$;
    REVOKE ALL ON FUNCTION hearth_erase_people(text[]) FROM PUBLIC;
"""

APPEND_ONLY = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON retention_retentionpolicy
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


class Migration(migrations.Migration):
    """Expand: tables, functions, and the first version of the policy."""

    dependencies: ClassVar = [
        ("billing", "0009_final_statements"),
        ("tenants", "0008_queue_and_idempotency_policy"),
        ("workers", "0012_deferred_leases"),
    ]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="RetentionPolicy",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("version", models.PositiveIntegerField(unique=True)),
                ("requests_months", models.PositiveIntegerField(default=13, null=True)),
                ("events_days", models.PositiveIntegerField(default=30, null=True)),
                ("decisions_days", models.PositiveIntegerField(default=90, null=True)),
                ("deferred_hours", models.PositiveIntegerField(default=24)),
                ("audit_days", models.PositiveIntegerField(default=730, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
        ),
        migrations.CreateModel(
            name="HeldMonth",
            fields=[
                ("month", models.CharField(max_length=7, primary_key=True, serialize=False)),
                ("reason", models.CharField(max_length=500)),
                ("tried_at", models.DateTimeField(db_default=Now())),
            ],
        ),
        migrations.CreateModel(
            name="Erasure",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("requested_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="erasure", to="tenants.tenant"
                    ),
                ),
            ],
        ),
        migrations.RunSQL(REFUSE.format(exceptions=EXCEPTIONS), REFUSE.format(exceptions="")),
        migrations.RunSQL(RETIRE, "DROP FUNCTION hearth_retire_rows(text, timestamptz, integer)"),
        migrations.RunSQL(WITHOUT_TEXT, "DROP FUNCTION hearth_without_text(jsonb)"),
        migrations.RunSQL(ERASE_AUDIT, "DROP FUNCTION hearth_erase_audit(uuid, uuid, integer)"),
        migrations.RunSQL(ERASE_PEOPLE, "DROP FUNCTION hearth_erase_people(text[])"),
        migrations.RunSQL(enable_sql("retention_erasure"), disable_sql("retention_erasure")),
        migrations.RunSQL(APPEND_ONLY, "DROP TRIGGER append_only ON retention_retentionpolicy"),
    ]
