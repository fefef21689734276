"""Row-level security, the last line of defence for tenant-facing reads.

A tenant-facing read runs inside :func:`as_tenant`, as role ``hearth_tenant``, which sees the rows of one tenant, and
none if no tenant is set. Queries still contain ``WHERE tenant_id = …``: ``current_setting`` is not leak-proof, so
PostgreSQL does not use it as an index condition. Every other role sees all rows, the tables' owner included, to which
the policies apply too; the role of a node sees fewer (``workers.node_role``).

A member who is confined to projects reads no other project's rows: :func:`confined_to` says so for a request, and a
second, restrictive policy (:func:`confine_sql`) leaves out the rest, on every table with a project and on those with
sums of the whole tenant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from tenants.ids import TenantId

TENANT_ROLE = "hearth_tenant"
#: The tenant whose rows a connection reads now.
_current: WeakKeyDictionary[BaseDatabaseWrapper, TenantId] = WeakKeyDictionary()
#: The projects whose rows the current request may read, by tenant; of a tenant that is absent, all.
_confined: ContextVar[Mapping[TenantId, Set[UUID]]] = ContextVar("_confined", default=MappingProxyType({}))

#: A role that inherits the tenant role would always be subject to its policies, not only inside ``as_tenant``.
_MAY_BECOME_TENANT = """
    SELECT pg_has_role(rolname, %(tenant)s, 'MEMBER') AND (rolsuper OR NOT pg_has_role(rolname, %(tenant)s, 'USAGE'))
    FROM pg_roles WHERE rolname = %(role)s
"""

_SET = "SELECT set_config('hearth.tenant_id', %s, true), set_config('hearth.project_ids', %s, true)"
#: The setting of a confined member's projects; null: all.
_PROJECTS = "nullif(current_setting('hearth.project_ids', true), '')"
#: The projects in a condition of :func:`confine_sql`. In a subquery, so that PostgreSQL reads the setting once a query.
OWN_PROJECTS = f"(SELECT {_PROJECTS}::uuid[])::uuid[]"


@contextmanager
def as_tenant(tenant_id: TenantId) -> Iterator[None]:
    """Run the block in a transaction that can read only this tenant's rows and write nothing.

    ``SET LOCAL`` ends with the transaction, so nothing leaks through a pooled connection. Inside another transaction
    the role is reset when the block ends or, if it raises, by the rollback to the savepoint. Inside a block of the same
    tenant it does nothing; inside one of another tenant it raises ValueError. Within :func:`confined_to` it reads no
    rows of other projects.
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
def confined_to(projects: Mapping[TenantId, Set[UUID]]) -> Iterator[None]:
    """Let reads within the block see these projects' rows only, of each tenant that is named; of others all."""
    before = _confined.set(projects)
    try:
        yield
    finally:
        _confined.reset(before)


def confine(projects: Mapping[TenantId, Set[UUID]]) -> None:
    """Do what :func:`confined_to` does, until the block of that which is around this call ends."""
    _confined.set(projects)


def confinement() -> Mapping[TenantId, Set[UUID]]:
    """Return what :func:`confined_to` was given, for work that goes on after its block."""
    return _confined.get()


def is_confined() -> bool:
    """Return whether the current :func:`as_tenant` block reads some projects only, and so no sums of the tenant."""
    return _current.get(connections[DEFAULT_DB_ALIAS]) in _confined.get()


@contextmanager
def _role_of(tenant_id: TenantId) -> Iterator[None]:
    projects = _confined.get().get(tenant_id)
    listed = "" if projects is None else f"{{{','.join(sorted(map(str, projects)))}}}"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_SET, [str(tenant_id), listed])
        cursor.execute(f"SET LOCAL ROLE {TENANT_ROLE}")
        yield
        if not connection.needs_rollback:
            cursor.execute("RESET ROLE")
            cursor.execute(_SET, ["", ""])


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


def confine_sql(table: str, condition: str = f"project_id = ANY ({OWN_PROJECTS})") -> str:
    """Return SQL for a migration: of ``table``, show a confined member those rows alone that meet ``condition``."""
    return f"""
        DROP POLICY IF EXISTS member_sees_projects ON {table};
        CREATE POLICY member_sees_projects ON {table} AS RESTRICTIVE FOR SELECT TO {TENANT_ROLE}
            USING ((SELECT {_PROJECTS}) IS NULL OR ({condition}));
    """


def unconfine_sql(table: str) -> str:
    """Return the SQL that undoes :func:`confine_sql`."""
    return f"DROP POLICY IF EXISTS member_sees_projects ON {table};"
