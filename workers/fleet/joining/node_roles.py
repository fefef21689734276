"""The role in PostgreSQL with which a node logs in: make it, and drop it, as the owner of the database may."""

from __future__ import annotations

import secrets
from urllib.parse import quote, urlsplit

import psycopg
from django.conf import settings
from psycopg import sql

from workers import node_role
from workers.errors import Refused

TIMEOUT_SECONDS = 10


def role(node: str) -> str:
    """Return the name of a node's role."""
    return f"{node_role.PREFIX}{node}"


def make(node: str) -> str:
    """Make the node's role, or give it a new password; return DATABASE_URL as the node has it.

    Raises Refused, with the statement for a superuser, where the owner may not make roles or is not known here.
    """
    password, name = secrets.token_urlsafe(24), sql.Identifier(role(node))
    try:
        with psycopg.connect(_owner_url(node), connect_timeout=TIMEOUT_SECONDS, autocommit=True) as link:
            # a verifier, so that no log of the server has the password
            verifier = link.pgconn.encrypt_password(password.encode(), role(node).encode(), b"scram-sha-256")
            told = sql.Literal(verifier.decode())
            if link.execute("SELECT FROM pg_roles WHERE rolname = %s", [role(node)]).fetchone() is None:
                made = "CREATE ROLE {} LOGIN NOSUPERUSER NOBYPASSRLS IN ROLE hearth_node PASSWORD {}"
                link.execute(sql.SQL(made).format(name, told))
            else:
                link.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, told))
    except psycopg.Error as error:
        raise _not_made(node, _first_line(error)) from error
    return _url(node, password)


def drop(node: str) -> str:
    """Drop the node's role; return the statement for a superuser if this process may not, else an empty text."""
    statement = f'DROP ROLE IF EXISTS "{role(node)}";'
    try:
        with psycopg.connect(_owner_url(node), connect_timeout=TIMEOUT_SECONDS, autocommit=True) as link:
            link.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role(node))))
    except (psycopg.Error, Refused):
        return statement
    return ""


def _owner_url(node: str) -> str:
    url: str = settings.DATABASE_OWNER_URL
    if not url:
        raise _not_made(node, "the portal has no DATABASE_OWNER_URL")
    return url


def _url(node: str, password: str) -> str:
    """Return the address of the database as the node reaches it and logs in."""
    parts = urlsplit(settings.NODE_DATABASE_URL or settings.DATABASE_OWNER_URL)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(role(node))}:{quote(password)}@{host}").geturl()


def _not_made(node: str, why: str) -> Refused:
    statement = f"CREATE ROLE \"{role(node)}\" LOGIN PASSWORD '…' IN ROLE hearth_node;"
    return Refused(
        "node",
        node,
        f"its role in PostgreSQL cannot be made from the portal ({why})",
        f"as a superuser run: {statement} Then set DATABASE_URL=postgresql://{role(node)}:…@…/hearth on the new "
        "machine and repeat `hearth node join`, with the same token",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
