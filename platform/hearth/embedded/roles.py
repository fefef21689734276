"""The roles of Hearth's database and their rights, which an operator of an external server sets up by hand.

Default privileges grant the rights to tables and sequences. They belong to one database, so they are set in
``template1``: every database created later, those of tests included, starts with them.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from hearth.secrets import DatabasePasswords

DATABASE = "hearth"

GRANTS = """
    ALTER DEFAULT PRIVILEGES FOR ROLE hearth_owner
        GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO hearth_app;
    ALTER DEFAULT PRIVILEGES FOR ROLE hearth_owner
        GRANT USAGE, SELECT ON SEQUENCES TO hearth_app;
"""

#: No role inherits: a session has a tenant's rights only after SET ROLE. The owner may switch to hearth_app and
#: hearth_node, so that tests can check the rights of both, and makes the roles of nodes that join.
MEMBERSHIPS = """
    GRANT hearth_tenant TO hearth_app WITH INHERIT FALSE, SET TRUE;
    GRANT hearth_tenant TO hearth_owner WITH INHERIT FALSE, SET TRUE;
    GRANT hearth_app TO hearth_owner WITH INHERIT FALSE, SET TRUE;
    GRANT hearth_node TO hearth_owner WITH ADMIN TRUE, INHERIT FALSE, SET TRUE;
"""


def ensure(superuser_url: str, passwords: DatabasePasswords) -> None:
    """Create or update the roles, their passwords, the database and its default rights. Idempotent."""
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        _ensure_role(connection, "hearth_owner", "LOGIN CREATEDB CREATEROLE NOSUPERUSER NOBYPASSRLS", passwords.owner)
        _ensure_role(connection, "hearth_app", "LOGIN NOCREATEDB NOSUPERUSER NOBYPASSRLS", passwords.app)
        for name in ("hearth_tenant", "hearth_node"):
            _ensure_role(connection, name, "NOLOGIN NOCREATEDB NOSUPERUSER NOBYPASSRLS", None)
        connection.execute(MEMBERSHIPS)
        exists = connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
        if exists is None:
            _grant_in(superuser_url, "template1")
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER hearth_owner").format(sql.Identifier(DATABASE)))


def _ensure_role(
    connection: psycopg.Connection[tuple[object, ...]], name: str, attributes: str, password: str | None
) -> None:
    """Create or alter one role. Sends the password as a SCRAM verifier, so that no server log can contain it."""
    exists = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).fetchone()
    verb = "CREATE" if exists is None else "ALTER"
    statement = f"{verb} ROLE {name} {attributes}"
    if password is None:
        connection.execute(sql.SQL(statement))
        return
    verifier = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
    connection.execute(sql.SQL(statement + " PASSWORD {}").format(sql.Literal(verifier.decode())))


def _grant_in(superuser_url: str, database: str) -> None:
    with psycopg.connect(superuser_url, dbname=database, autocommit=True) as connection:
        connection.execute(GRANTS)
