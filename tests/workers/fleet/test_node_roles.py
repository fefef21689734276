"""The functions that make and drop nodes' database roles: nothing else can be made or changed with them."""

from __future__ import annotations

import re

import pytest
from django.db import connection, transaction
from django.db.utils import DataError, ProgrammingError
from django.test import override_settings

from tenants.database import rls
from workers.errors import Refused
from workers.fleet.joining import node_roles

pytestmark = pytest.mark.django_db

NAME = "n-made.here_1"
VERIFIER = f"SCRAM-SHA-256$4096:{'a' * 22}==${'b' * 43}=:{'c' * 43}="
ATTRIBUTES = (
    "SELECT rolcanlogin, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, rolreplication, "
    "ARRAY(SELECT roleid::regrole::text FROM pg_auth_members WHERE member = pg_roles.oid) "
    "FROM pg_roles WHERE rolname = %s"
)


@pytest.fixture(autouse=True)
def as_app(db: None) -> None:
    """Make what follows as the role that runs Hearth, in the test's transaction."""
    if not run("SELECT 1 FROM pg_roles WHERE rolname = 'hearth_app'"):
        pytest.skip("DATABASE_URL names a server with other roles")
    rls.grant("hearth_app")
    run("SET LOCAL ROLE hearth_app")


def run(statement: str, *values: str) -> list[tuple[object, ...]]:
    """Run one statement and return its rows."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def as_owner(statement: str) -> None:
    """Run a statement as the tables' owner."""
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
        cursor.execute(statement)
        cursor.execute("SET LOCAL ROLE hearth_app")


def roles() -> set[str]:
    return {str(name) for (name,) in run("SELECT rolname FROM pg_roles")}


@pytest.mark.parametrize("setting", ["DATABASE_URL", "NODE_DATABASE_URL"])
def test_a_nodes_address_has_no_other_name_and_password(setting: str) -> None:
    given = "postgresql://hearth_app:x@db.example/hearth?user=hearth_app&password=s3cret&sslmode=verify-full"
    with override_settings(**{setting: f"{given}&sslrootcert=/etc/ca.pem&sslkey=/k&passfile=/p"}):
        url = node_roles.make(NAME)
    assert url.partition("@")[2] == "db.example/hearth?sslmode=verify-full&sslrootcert=/etc/ca.pem"


def test_a_role_is_made_gets_another_password_and_is_dropped() -> None:
    before = roles()
    with override_settings(DATABASE_URL="postgresql://hearth_app:x@db.example:5433/hearth?sslmode=require"):
        url = node_roles.make(NAME)
        again = node_roles.make(NAME)
    found = re.fullmatch(rf"postgresql://hearth_node_{NAME}:(\S+)@db\.example:5433/hearth\?sslmode=require", url)
    assert found is not None and found[1] not in again
    assert run(ATTRIBUTES, f"hearth_node_{NAME}") == [(True, *[False] * 5, ["hearth_node"])]
    assert roles() - before == {f"hearth_node_{NAME}"}
    assert node_roles.drop(NAME) == ""
    assert node_roles.drop(NAME) == ""
    assert roles() == before


@pytest.mark.parametrize(
    "name",
    ["", " n", "n n", "n\n", 'n"', 'n" SUPERUSER; --', "n'; DROP ROLE hearth_app; --", "-n", "n$", "né", "n" * 52],
)
def test_a_name_that_is_none_of_a_node_makes_and_drops_nothing(name: str) -> None:
    before = roles()
    with pytest.raises(DataError, match="is no name of a node"):
        run("SELECT hearth_make_node_role(%s, %s)", name, VERIFIER)
    with pytest.raises(DataError, match="is no name of a node"):
        run("SELECT hearth_drop_node_role(%s)", name)
    assert roles() == before


@pytest.mark.parametrize(
    "verifier",
    ["", "secret", "md5" + "0" * 32, f"{VERIFIER}\n", f"{VERIFIER}' SUPERUSER --", VERIFIER.replace(":", "'")],
)
def test_a_password_is_taken_as_a_verifier_alone(verifier: str) -> None:
    with pytest.raises(DataError, match="no SCRAM verifier"):
        run("SELECT hearth_make_node_role(%s, %s)", NAME, verifier)
    assert f"hearth_node_{NAME}" not in roles()


@pytest.mark.parametrize(
    "made",
    ["CREATEDB IN ROLE hearth_node", "CREATEROLE IN ROLE hearth_node", "IN ROLE hearth_node, readers_of_a_test", ""],
)
def test_a_role_with_other_rights_than_a_nodes_is_left_alone(made: str) -> None:
    as_owner("CREATE ROLE readers_of_a_test")
    as_owner(f'CREATE ROLE "hearth_node_{NAME}" {made}')
    before = run(ATTRIBUTES, f"hearth_node_{NAME}")
    for statement, values in (
        ("SELECT hearth_make_node_role(%s, %s)", (NAME, VERIFIER)),
        ("SELECT hearth_drop_node_role(%s)", (NAME,)),
    ):
        with pytest.raises(ProgrammingError, match="has other rights than those of a node"):
            run(statement, *values)
    assert run(ATTRIBUTES, f"hearth_node_{NAME}") == before
    assert node_roles.drop(NAME) == f'DROP ROLE IF EXISTS "hearth_node_{NAME}";'


@pytest.mark.parametrize("role", ["hearth_tenant", "hearth_node", "hearth_node_n1"])
def test_tenants_and_nodes_may_call_none_of_them(role: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
        cursor.execute(f"SET LOCAL ROLE {role}")
    for statement in (
        f"SELECT hearth_make_node_role('{NAME}', '{VERIFIER}')",
        f"SELECT hearth_drop_node_role('{NAME}')",
        f"SELECT hearth_node_role('{NAME}')",
    ):
        with pytest.raises(ProgrammingError, match="permission denied for function"):
            run(statement)


def test_a_callers_own_tables_and_operators_change_nothing() -> None:
    run("CREATE TEMP TABLE pg_roles AS SELECT 'none'::name AS rolname")
    run("SET LOCAL search_path = pg_temp, public")
    run("SELECT hearth_make_node_role(%s, %s)", NAME, VERIFIER)
    run("SELECT hearth_make_node_role(%s, %s)", NAME, VERIFIER)
    assert run("SELECT count(*) FROM pg_catalog.pg_roles WHERE rolname = %s", f"hearth_node_{NAME}") == [(1,)]


def test_an_owner_that_may_not_make_roles_leaves_the_statement() -> None:
    as_owner("ALTER FUNCTION hearth_make_node_role(text, text) SECURITY INVOKER")
    with pytest.raises(Refused) as refused, transaction.atomic():
        node_roles.make(NAME)
    assert "permission denied to create role" in refused.value.why
    assert f'CREATE ROLE "hearth_node_{NAME}" LOGIN PASSWORD' in refused.value.instead
    assert run("SELECT 1") == [(1,)]
