"""A function that erases the stored logs of the engines that ran a tenant's requests."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

ERASED = "Erased with a tenant whose requests this replica ran."
ERASE = f"""
    CREATE FUNCTION hearth_erase_engine_logs(given uuid, after_id uuid, most integer) RETURNS uuid
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
        PERFORM set_config('hearth.erasing', 'on', true);
        UPDATE workers_replicaevent SET log_tail = '{ERASED}'
        WHERE log_tail NOT IN ('', '{ERASED}') AND replica_id IN (
            SELECT replica_id FROM billing_usagerecord WHERE tenant_id = given AND id > after_id AND id <= last_id
        );
        PERFORM set_config('hearth.erasing', 'off', true);
        RETURN last_id;
    END $$;
    REVOKE ALL ON FUNCTION hearth_erase_engine_logs(uuid, uuid, integer) FROM PUBLIC;
"""


class Migration(migrations.Migration):
    """Expand: the release before calls no such function."""

    dependencies: ClassVar = [
        ("retention", "0001_initial"),
        ("billing", "0046_confined_members"),
        ("workers", "0048_confined_members"),
    ]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(ERASE, "DROP FUNCTION hearth_erase_engine_logs(uuid, uuid, integer)")
    ]
