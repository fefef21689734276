"""Compare the guards of a live database with those that Hearth made: row-level security, triggers, rights of roles.

Reads the system catalogues only, which every role may read. Tables are those of the models, of which row-level security
must protect each with a tenant, and every other table of the database with such a column, such as a partition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg

from hearth.checks.finding import Finding
from tenants.database.rls import TENANT_ROLE, enable_sql
from workers import node_role

CONNECT_SECONDS = 3
TENANT_COLUMN = "tenant_id"
#: Tables whose own rows are tenants or have a tenant by another name.
FURTHER_TENANT_TABLES = (
    "tenants_tenant",
    "catalogue_model",
    "billing_ledgerentry",
    "billing_priceversion",
    "billing_planversion",
)
#: The triggers that keep tables append-only, and the functions that they run.
_APPEND_ONLY = ("append_only", "hearth_refuse_change")
TRIGGERS: tuple[tuple[str, str, str], ...] = (
    *(
        ("only_grows", f"hearth_guard_{table}", table)
        for table in (
            "billing_usagerecord",
            "billing_usagerollup",
            "billing_bypassrollup",
            "billing_bankline",
            "billing_billingmonth",
            "billing_invoice",
            "billing_issuer",
            "billing_usageexport",
            "billing_planversion",
            "billing_tenantplan",
            "billing_creditrequest",
            "reserved_capacity_capacityreservation",
        )
    ),
    *(
        (*_APPEND_ONLY, table)
        for table in (
            "billing_bankassignment",
            "billing_bankcredit",
            "billing_budgetalert",
            "billing_creditnote",
            "billing_creditentry",
            "billing_dunningstep",
            "billing_finalstatement",
            "billing_invoicedocument",
            "billing_invoiceline",
            "billing_invoicepayment",
            "billing_ledgerentry",
            "billing_ledgertransaction",
            "billing_lateposting",
            "billing_monthline",
            "billing_monthprojectline",
            "billing_monthtermsline",
            "billing_paymentfailure",
            "billing_paymentundone",
            "billing_plan",
            "billing_priceversion",
            "reserved_capacity_reservedhour",
            "retention_retentionpolicy",
            "tenants_auditentry",
            "tenants_cachepurge",
            "tenants_tenantpolicy",
            "workers_replicaevent",
            "workers_scaledecision",
            "workers_starttime",
        )
    ),
    ("balanced", "hearth_ledger_balances", "billing_ledgerentry"),
    ("late_postings", "hearth_note_late_posting", "billing_ledgertransaction"),
    ("not_below_zero", "hearth_credit_not_below_zero", "billing_creditentry"),
    ("keep_currency", "hearth_keep_currency", "tenants_tenant"),
    ("one_legal_document", "hearth_one_legal_document", "billing_invoice"),
    ("one_legal_document", "hearth_one_legal_document", "billing_stripeinvoice"),
    ("one_currency", "hearth_one_currency", "billing_pricebook"),
    ("one_currency", "hearth_one_currency", "billing_tenantplan"),
    ("one_currency", "hearth_one_currency", "reserved_capacity_capacityreservation"),
)
_MAKE = {
    "balanced": (
        "CREATE CONSTRAINT TRIGGER balanced AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION {function}();"
    ),
    "late_postings": (
        "CREATE TRIGGER late_postings AFTER INSERT ON {table} FOR EACH ROW "
        "WHEN (NEW.kind = 'usage' AND NEW.source LIKE 'usage:%') EXECUTE FUNCTION {function}();"
    ),
    "not_below_zero": (
        "CREATE CONSTRAINT TRIGGER not_below_zero AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION {function}();"
    ),
    "one_legal_document": (
        "CREATE TRIGGER one_legal_document BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {function}();"
    ),
    "one_currency": (
        "CREATE TRIGGER one_currency BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW "
        "WHEN (NEW.tenant_id IS NOT NULL) EXECUTE FUNCTION {function}();"
    ),
    "keep_currency": (
        "CREATE TRIGGER keep_currency BEFORE UPDATE OF currency ON {table} FOR EACH ROW "
        "WHEN (OLD.currency IS DISTINCT FROM NEW.currency) EXECUTE FUNCTION {function}();"
    ),
}
_MAKE_APPEND_ONLY = (
    "CREATE TRIGGER {name} BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}();"
)
#: The letters of PostgreSQL's access lists that a table's rights have in words.
APP_RIGHTS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE"})
AS_OWNER = "As the tables' owner run: "
AS_SUPERUSER = "As a superuser run: "

#: Tables that say which days are summed and name no tenant: each may read them whole.
FOR_EVERY_TENANT = ("billing_foldedday", "billing_foldedhalfhour")
#: What the policy of another table names: the setting with the tenant, or another table that is protected by it.
OWN_ROWS = r"hearth\.tenant_id|FROM billing_pricebook|FROM billing_ledgeraccount"

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

_TABLES = """
    SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity,
           EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = %s AND NOT a.attisdropped),
           coalesce((SELECT array_agg(p.polname::text) FROM pg_policy p WHERE p.polrelid = c.oid
               AND p.polpermissive AND (p.polname NOT IN ('platform_sees_all', 'tenant_sees_own')
                   OR p.polname = 'platform_sees_all'
                   AND pg_get_expr(p.polqual, p.polrelid) <> '(CURRENT_USER <> ''hearth_tenant''::name)'
                   OR p.polname = 'tenant_sees_own' AND c.relname <> ALL(%s)
                   AND pg_get_expr(p.polqual, p.polrelid) !~ %s)), '{}'),
           has_any_column_privilege(%s, c.oid, 'SELECT')
    FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY c.relname
"""
_TRIGGERS = """
    SELECT t.tgname, p.proname, c.relname
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE c.relnamespace = 'public'::regnamespace AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
"""
#: Every right on a table or one of its columns: the role ('' is PUBLIC), the right, the table, the column or ''.
_GRANTS = """
    SELECT CASE a.grantee WHEN 0 THEN '' ELSE a.grantee::regrole::text END, a.privilege_type, t.relname, t.attname
    FROM (
        SELECT c.relname, '' AS attname, c.relacl AS acl FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
        UNION ALL
        SELECT c.relname, t.attname, t.attacl FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
    ) AS t, aclexplode(t.acl) AS a
    ORDER BY 1, 3, 2, 4
"""
#: Functions that run with their owner's rights and that everybody may call.
_FUNCTIONS = """
    SELECT p.oid::regprocedure::text FROM pg_proc p
    WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef AND has_function_privilege('public', p.oid, 'EXECUTE')
    ORDER BY 1
"""
_ROLES = """
    SELECT r.rolname, r.rolsuper, r.rolbypassrls, r.rolcreaterole, r.rolreplication, r.rolcanlogin,
           has_schema_privilege(r.oid, 'public', 'CREATE'),
           EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relowner = r.oid),
           ARRAY(SELECT m.roleid::regrole::text FROM pg_auth_members m WHERE m.member = r.oid ORDER BY 1),
           EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid AND m.inherit_option
                   AND m.roleid = to_regrole(%(tenant)s))
    FROM pg_roles r
    WHERE r.rolname IN (current_user, %(tenant)s, %(node)s) OR starts_with(r.rolname, %(prefix)s)
    ORDER BY r.rolname
"""
_POLICIES = """
    SELECT c.relname, p.polname, coalesce(obj_description(p.oid, 'pg_policy'), '')
    FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid WHERE c.relnamespace = 'public'::regnamespace
"""


def findings(url: str) -> Iterator[Finding]:
    """Yield what :func:`missing` does for the database of this address, as its role.

    Raises psycopg.OperationalError where the server does not respond.
    """
    with psycopg.connect(url, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('public.tenants_tenant')").fetchone() != (None,):
            yield from missing(connection)  # else the first start has not migrated it yet


def missing(connection: Connection) -> Iterator[Finding]:
    """Yield each guard that is missing from a database, and each right too many of its current role and of nodes."""
    yield from _row_security(connection)
    yield from _triggers(connection)
    yield from _roles(connection)
    yield from _grants(connection)
    yield from _node_policies(connection)
    for (function,) in connection.execute(_FUNCTIONS):
        yield Finding(
            f"Every role may call {function}, which runs with the rights of its owner.",
            f"{AS_OWNER}REVOKE ALL ON FUNCTION {function} FROM PUBLIC;",
        )


def tables_of_models() -> frozenset[str]:
    """Return the tables of the models that have a tenant, and FURTHER_TENANT_TABLES. Sets up Django if needed."""
    import django
    from django.apps import apps

    if not apps.ready:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
        django.setup()
    return frozenset(FURTHER_TENANT_TABLES) | {
        model._meta.db_table
        for model in apps.get_models()
        if any(field.column == TENANT_COLUMN for field in model._meta.local_concrete_fields)
    }


def _row_security(connection: Connection) -> Iterator[Finding]:
    of_tenants = tables_of_models()
    for table, is_forced, has_tenant, policies, tenant_reads in connection.execute(
        _TABLES, [TENANT_COLUMN, list(FOR_EVERY_TENANT), OWN_ROWS, TENANT_ROLE]
    ):
        must = table in of_tenants or has_tenant or tenant_reads
        if must and not is_forced:
            yield Finding(
                f"A read for one tenant could return another's rows: row-level security is not forced on {table}.",
                f"{AS_OWNER}ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;",
            )
        if must and policies:
            yield Finding(
                f"Policies of {table} that Hearth did not make widen what a tenant reads: {', '.join(policies)}.",
                f"{AS_OWNER}DROP POLICY {policies[0]} ON {table}; one that Hearth makes is created again by: "
                f"{' '.join(enable_sql(str(table)).split())}",
            )


def _triggers(connection: Connection) -> Iterator[Finding]:
    found = set(connection.execute(_TRIGGERS))
    for name, function, table in TRIGGERS:
        if (name, function, table) not in found:
            statement = _MAKE.get(name, _MAKE_APPEND_ONLY).format(name=name, function=function, table=table)
            yield Finding(
                f"Rows of {table} can be changed after the fact: its trigger {name} is missing or disabled.",
                f"{AS_OWNER}DROP TRIGGER IF EXISTS {name} ON {table}; {statement}",
            )


def _roles(connection: Connection) -> Iterator[Finding]:
    (own,) = connection.execute("SELECT current_user::text").fetchone() or ("",)
    rows = connection.execute(
        _ROLES, {"tenant": TENANT_ROLE, "node": node_role.ROLE, "prefix": node_role.PREFIX}
    ).fetchall()
    for name, is_super, bypasses, makes_roles, replicates, logs_in, makes_tables, owns, groups, inherits in rows:
        role = f'"{name}"'
        for is_wide, can, statement in (
            (is_super, "is a superuser", f"ALTER ROLE {role} NOSUPERUSER;"),
            (bypasses, "bypasses row-level security", f"ALTER ROLE {role} NOBYPASSRLS;"),
            (makes_roles, "creates roles", f"ALTER ROLE {role} NOCREATEROLE;"),
            (replicates, "may copy the whole server", f"ALTER ROLE {role} NOREPLICATION;"),
            (makes_tables, "may create tables", f"REVOKE CREATE ON SCHEMA public FROM {role}, PUBLIC;"),
            (owns, "owns tables, so may change them", f"REASSIGN OWNED BY {role} TO hearth_owner;"),
            (inherits, f"always has the rights of {TENANT_ROLE}", f"GRANT {TENANT_ROLE} TO {role} WITH INHERIT FALSE;"),
            (
                logs_in and name in {TENANT_ROLE, node_role.ROLE},
                "may log in, but is a role for others to take",
                f"ALTER ROLE {role} NOLOGIN;",
            ),
        ):
            if is_wide:
                yield Finding(f"The database role {name} {can}.", AS_SUPERUSER + statement)
        for group in groups:
            if group.strip('"') not in _groups(str(name), str(own)):
                yield Finding(
                    f"The database role {name} also has the rights of {group}.",
                    f"{AS_SUPERUSER}REVOKE {group} FROM {role};",
                )


def _groups(role: str, own: str) -> set[str]:
    """Return the roles that a role may be a member of."""
    if role.startswith(node_role.PREFIX):
        return {node_role.ROLE}
    return {TENANT_ROLE} if role == own else set()


def _grants(connection: Connection) -> Iterator[Finding]:
    (own,) = connection.execute("SELECT current_user::text").fetchone() or ("",)
    wide: dict[tuple[str, str], list[str]] = {}
    for role, right, table, column in connection.execute(_GRANTS):
        name, what = str(role).strip('"'), f"{right} ({column})" if column else str(right)
        if not _may(name, str(right), str(table), str(column), own=str(own)):
            wide.setdefault((name, str(table)), []).append(what)
    for (name, table), rights in wide.items():
        who = f"The database role {name}" if name else "Every database role"
        role = f'"{name}"' if name else "PUBLIC"
        yield Finding(
            f"{who} has rights on {table} that it must not have: {', '.join(rights)}.",
            f"{AS_OWNER}REVOKE {', '.join(rights)} ON {table} FROM {role};",
        )


def _may(role: str, right: str, table: str, column: str, *, own: str) -> bool:
    """Return whether a role is meant to have a right. Roles that are no part of Hearth are the operator's own."""
    if role == TENANT_ROLE:
        return right == "SELECT"  # row-level security of what it reads is checked apart
    if role == node_role.ROLE:
        return _node_may(right, table, column)
    if not role or role.startswith(node_role.PREFIX):
        return False
    return role != own or right in APP_RIGHTS


def _node_may(right: str, table: str, column: str) -> bool:
    if right == "UPDATE" and column:
        return column in node_role.UPDATE.get(table, "").replace('"', "").split(", ")
    if right == "INSERT" and column:
        return column in node_role.INSERT_COLUMNS.get(table, "").split(", ")
    allowed = {"SELECT": node_role.READ, "INSERT": node_role.INSERT, "DELETE": node_role.DELETE}
    return not column and table in allowed.get(right, ())


def _node_policies(connection: Connection) -> Iterator[Finding]:
    """Yield a finding for each policy of nodes that is missing or another one, where nodes have rights at all."""
    has_rights = "SELECT has_table_privilege(oid, 'workers_node', 'SELECT') FROM pg_roles WHERE rolname = %s"
    if connection.execute(has_rights, [node_role.ROLE]).fetchone() != (True,):
        return
    found = set(connection.execute(_POLICIES))
    for policy in node_role.policies():
        if (policy.table, policy.name, policy.sql()) not in found:
            yield Finding(
                f"A node may use rows of {policy.table} that are not its own: the policy {policy.name} is missing "
                "or another one.",
                "Run `hearth bootstrap`, or `hearth up`, on the first machine: it makes the policies of nodes again.",
            )
