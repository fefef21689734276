"""Row-level security, the backstop of tenant-facing reads.

A tenant-facing read runs inside :func:`as_tenant`, as role ``hearth_tenant``, which sees the rows of one tenant
and nothing when no tenant is set. Queries still say ``WHERE tenant_id = …`` themselves: ``current_setting`` is
not leak-proof, so PostgreSQL does not use it for an index condition. Every other role sees all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from tenants.ids import TenantId

TENANT_ROLE = "hearth_tenant"


@contextmanager
def as_tenant(tenant_id: TenantId) -> Iterator[None]:
    """Run the block in one transaction that can read only this tenant's rows and write nothing.

    ``SET LOCAL`` ends with the transaction, so nothing leaks through a pooled connection. Inside another transaction
    the role is given back when the block ends; when the block raises, by the rollback to where it began.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('hearth.tenant_id', %s, true)", [str(tenant_id)])
        cursor.execute(f"SET LOCAL ROLE {TENANT_ROLE}")
        yield
        if not connection.needs_rollback:
            cursor.execute("RESET ROLE")
            cursor.execute("SELECT set_config('hearth.tenant_id', '', true)")


def enable_sql(table: str, condition: str = "tenant_id = current_setting('hearth.tenant_id')::uuid") -> str:
    """Return the SQL for a migration: protect ``table``, and let the tenant role read rows that meet ``condition``."""
    return f"""
        ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
        CREATE POLICY platform_sees_all ON {table}
            USING (current_user <> '{TENANT_ROLE}') WITH CHECK (current_user <> '{TENANT_ROLE}');
        CREATE POLICY tenant_sees_own ON {table} FOR SELECT TO {TENANT_ROLE} USING ({condition});
        GRANT SELECT ON {table} TO {TENANT_ROLE};
    """


def disable_sql(table: str) -> str:
    """Return the SQL that undoes :func:`enable_sql`."""
    return f"""
        REVOKE SELECT ON {table} FROM {TENANT_ROLE};
        DROP POLICY tenant_sees_own ON {table};
        DROP POLICY platform_sees_all ON {table};
        ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;
    """
