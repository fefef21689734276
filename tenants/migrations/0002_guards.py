"""Guards in the database: the tenant role, row-level security, an append-only audit log, the epoch row."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

ROLE = """
    DO $$ BEGIN
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'hearth_tenant') THEN
            CREATE ROLE hearth_tenant NOLOGIN;
        END IF;
        IF NOT pg_has_role(current_user, 'hearth_tenant', 'MEMBER') THEN
            EXECUTE format('GRANT hearth_tenant TO %I', current_user);
        END IF;
    END $$;
    GRANT USAGE ON SCHEMA public TO hearth_tenant;
"""

REFUSE = """
    CREATE FUNCTION hearth_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION '% only grows: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
    END $$;
"""

APPEND_ONLY = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""

OWN = "tenant_id = current_setting('hearth.tenant_id')::uuid"
PROTECTED = {
    "tenants_tenant": "id = current_setting('hearth.tenant_id')::uuid",
    "tenants_tenantpolicy": OWN,
    "tenants_membership": OWN,
    "tenants_project": OWN,
    "tenants_apikey": OWN,
    "tenants_auditentry": OWN,
}
GROWING = ("tenants_auditentry", "tenants_tenantpolicy")


class Migration(migrations.Migration):
    """Reversible, except that the role stays: other databases of the cluster may use it."""

    dependencies: ClassVar = [("tenants", "0001_initial")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(ROLE, migrations.RunSQL.noop),
        migrations.RunSQL(REFUSE, "DROP FUNCTION hearth_refuse_change()"),
        *[
            migrations.RunSQL(APPEND_ONLY.format(table=table), f"DROP TRIGGER append_only ON {table}")
            for table in GROWING
        ],
        *[migrations.RunSQL(enable_sql(table, own), disable_sql(table)) for table, own in PROTECTED.items()],
        migrations.RunSQL(
            "INSERT INTO tenants_policyepoch (id, value) VALUES (1, 1)", "DELETE FROM tenants_policyepoch"
        ),
    ]
