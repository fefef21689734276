"""Row-level security, the last line of defence for tenant-facing reads.

A tenant-facing read runs inside :func:`as_tenant`, as role ``hearth_tenant``, which sees the rows of one tenant, and
none if no tenant is set. Queries still contain ``WHERE tenant_id = …``: ``current_setting`` is not leak-proof, so
PostgreSQL does not use it as an index condition. Every other role sees all rows, the tables' owner included, to which
the policies apply too; the role of a node sees fewer (``workers.node_role``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from tenants.ids import TenantId

TENANT_ROLE = "hearth_tenant"
#: The tenant whose rows a connection reads now.
_current: WeakKeyDictionary[BaseDatabaseWrapper, TenantId] = WeakKeyDictionary()

#: A role that inherits the tenant role would always be subject to its policies, not only inside ``as_tenant``.
_MAY_BECOME_TENANT = """
    SELECT pg_has_role(rolname, %(tenant)s, 'MEMBER') AND (rolsuper OR NOT pg_has_role(rolname, %(tenant)s, 'USAGE'))
    FROM pg_roles WHERE rolname = %(role)s
"""


@contextmanager
def as_tenant(tenant_id: TenantId) -> Iterator[None]:
    """Run the block in a transaction that can read only this tenant's rows and write nothing.

    ``SET LOCAL`` ends with the transaction, so nothing leaks through a pooled connection. Inside another transaction
    the role is reset when the block ends or, if it raises, by the rollback to the savepoint. Inside a block of the same
    tenant it does nothing; inside one of another tenant it raises ValueError.
    """
    own = connections[DEFAULT_DB_ALIAS]
    if (outer := _current.get(own)) is not None:
        if outer != tenant_id:
            raise ValueError(f"a read of tenant {tenant_id} inside one of tenant {outer}")
        yield
        return
    _current[own] = tenant_id
    try:
        with _role_of(tenant_id):
            yield
    finally:
        del _current[own]


@contextmanager
def _role_of(tenant_id: TenantId) -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('hearth.tenant_id', %s, true)", [str(tenant_id)])
        cursor.execute(f"SET LOCAL ROLE {TENANT_ROLE}")
        yield
        if not connection.needs_rollback:
            cursor.execute("RESET ROLE")
            cursor.execute("SELECT set_config('hearth.tenant_id', '', true)")


def grant(role: str) -> None:
    """Let ``role`` read and write all tables of this database, present and future, and read as a tenant. Idempotent.

    It may also call the functions that retire old rows, which run as their owner.

    Run it as the tables' owner. Raises ProgrammingError when the role does not exist, or when it is not a member of
    the tenant role and the owner may not make it one.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        name = connection.ops.quote_name(role)
        cursor.execute(f"GRANT USAGE ON SCHEMA public TO {name}")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
        cursor.execute(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {name}")
        # Some run as their owner. A restored database has lost what migrations revoked.
        cursor.execute("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC")
        cursor.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {name}")
        cursor.execute(f"ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {name}")
        cursor.execute(f"ALTER DEFAULT PRIVILEGES GRANT USAGE, SELECT ON SEQUENCES TO {name}")
        cursor.execute(_MAY_BECOME_TENANT, {"role": role, "tenant": TENANT_ROLE})
        if cursor.fetchone() != (True,):
            cursor.execute(f"GRANT {TENANT_ROLE} TO {name} WITH INHERIT FALSE, SET TRUE")


def enable_sql(table: str, condition: str = "tenant_id = current_setting('hearth.tenant_id')::uuid") -> str:
    """Return SQL for a migration: protect ``table``, and let the tenant role read rows that meet ``condition``."""
    return f"""
        ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
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
        ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
    """
