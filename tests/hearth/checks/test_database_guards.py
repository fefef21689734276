"""`hearth check --deploy` compares the guards of a live database; each is broken once, and named with its repair."""

from __future__ import annotations

import pytest
from django.db import connection

from hearth.checks import database_guards
from hearth.checks.finding import Finding
from workers import node_role

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nodes() -> None:
    """Give the role of nodes its rights, as a start does."""
    node_role.grant()


def found(role: str = "hearth_app") -> list[Finding]:
    """Return what the role of a running instance finds; each has a remedy."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE {role}")
        all_found = list(database_guards.missing(connection.connection))
        cursor.execute("RESET ROLE")
    assert all(each.remedy for each in all_found)
    return all_found


def problems(role: str = "hearth_app") -> list[str]:
    """Return the problems that are found."""
    return [each.problem for each in found(role)]


def change(statement: str) -> None:
    """Run a statement as the owner of the tables."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_a_database_as_it_is_migrated_has_every_guard() -> None:
    assert problems() == []


def test_every_trigger_of_the_migrations_is_checked() -> None:
    of_no_partition = database_guards._TRIGGERS + " AND t.tgparentid = 0"
    with connection.cursor() as cursor:
        cursor.execute(of_no_partition)
        assert set(cursor.fetchall()) == set(database_guards.TRIGGERS)


def test_every_table_of_a_tenant_is_checked() -> None:
    tables = database_guards.tables_of_models()
    assert {"billing_usagerecord", "billing_usagerollup", "tenants_apikey", "workers_deferredrequest"} <= tables
    assert {"tenants_user", "workers_node"}.isdisjoint(tables)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            "ALTER TABLE tenants_apikey NO FORCE ROW LEVEL SECURITY",
            "row-level security is not forced on tenants_apikey",
        ),
        (
            "ALTER TABLE billing_usagerecord_default DISABLE ROW LEVEL SECURITY",
            "row-level security is not forced on billing_usagerecord_default",
        ),
        (
            "CREATE TABLE made_by_hand (tenant_id uuid)",
            "row-level security is not forced on made_by_hand",
        ),
        (
            "CREATE POLICY everything ON tenants_budget USING (true)",
            "Policies of tenants_budget that Hearth did not make widen what a tenant reads: everything.",
        ),
        (
            "ALTER POLICY tenant_sees_own ON tenants_apikey USING (true)",
            "Policies of tenants_apikey that Hearth did not make widen what a tenant reads: tenant_sees_own.",
        ),
        (
            "DROP TRIGGER only_grows ON billing_usagerollup",
            "Rows of billing_usagerollup can be changed after the fact: its trigger only_grows is missing or disabled.",
        ),
        (
            "ALTER TABLE billing_ledgerentry DISABLE TRIGGER append_only",
            "Rows of billing_ledgerentry can be changed after the fact: its trigger append_only is missing",
        ),
        (
            "GRANT TRUNCATE ON billing_ledgerentry TO hearth_app",
            "The database role hearth_app has rights on billing_ledgerentry that it must not have: TRUNCATE.",
        ),
        (
            "GRANT SELECT (password) ON tenants_user TO hearth_node",
            "The database role hearth_node has rights on tenants_user that it must not have: SELECT (password).",
        ),
        (
            "GRANT SELECT ON tenants_user TO hearth_tenant",
            "row-level security is not forced on tenants_user",
        ),
        (
            "GRANT INSERT ON tenants_membership TO hearth_tenant",
            "The database role hearth_tenant has rights on tenants_membership that it must not have: INSERT.",
        ),
        (
            "GRANT EXECUTE ON FUNCTION hearth_erase_people(text[]) TO PUBLIC",
            "Every role may call hearth_erase_people(text[]), which runs with the rights of its owner.",
        ),
        (
            "DROP POLICY node_update ON workers_replica",
            "A node may use rows of workers_replica that are not its own: the policy node_update is missing",
        ),
    ],
)
def test_a_guard_that_was_taken_away_is_found(broken: str, said: str) -> None:
    change(broken)
    assert [each for each in problems() if said in each] == problems() != []


def test_what_everybody_may_read_is_found_for_each_role_that_it_widens() -> None:
    change("GRANT SELECT ON django_session TO PUBLIC")
    unprotected, public = problems()
    assert "row-level security is not forced on django_session" in unprotected
    assert public == "Every database role has rights on django_session that it must not have: SELECT."


def test_the_remedy_repairs_what_was_found() -> None:
    change("DROP TRIGGER balanced ON billing_ledgerentry")
    change("DROP TRIGGER only_grows ON billing_usagerecord")
    change("ALTER TABLE tenants_project NO FORCE ROW LEVEL SECURITY")
    change("GRANT UPDATE (role) ON tenants_membership TO hearth_node")
    repairs = [each.remedy for each in found()]
    assert len(repairs) == 4
    for each in repairs:
        change(each.removeprefix(database_guards.AS_OWNER))
    assert problems() == []


def test_a_start_as_the_owner_of_the_tables_is_found() -> None:
    assert "The database role hearth_owner owns tables, so may change them." in problems("hearth_owner")
