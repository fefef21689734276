"""Row-level security of what agents and drains write, so that the role of a node writes only its own rows.

``workers.node_role`` adds the policies of that role. For every other role all rows stay as they are. Tables that had
row-level security already now apply it to their owner too.
"""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

TABLES = (
    "workers_node",
    "workers_slot",
    "workers_slotlease",
    "workers_placeholder",
    "workers_replica",
    "workers_replicaevent",
    "workers_starttime",
    "billing_waloffset",
)
PROTECT = """
    ALTER TABLE {0} ENABLE ROW LEVEL SECURITY;
    CREATE POLICY platform_sees_all ON {0} USING (true) WITH CHECK (true);
"""
RELEASE = """
    DROP POLICY platform_sees_all ON {0};
    ALTER TABLE {0} DISABLE ROW LEVEL SECURITY;
"""
FORCE = """
    DO $$ DECLARE protected regclass;
    BEGIN
        FOR protected IN
            SELECT oid FROM pg_class
            WHERE relnamespace = 'public'::regnamespace AND relrowsecurity AND NOT relforcerowsecurity
        LOOP
            EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', protected);
        END LOOP;
    END $$;
"""


class Migration(migrations.Migration):
    """Policies only."""

    dependencies: ClassVar = [
        ("workers", "0012_deferred_leases"),
        ("billing", "0009_final_statements"),
        ("catalogue", "0003_shared_models"),
        ("tenants", "0008_queue_and_idempotency_policy"),
    ]
    operations: ClassVar[list[Operation]] = [
        *[migrations.RunSQL(PROTECT.format(table), RELEASE.format(table)) for table in TABLES],
        migrations.RunSQL(FORCE, migrations.RunSQL.noop),
    ]
