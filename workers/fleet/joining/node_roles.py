"""The role in PostgreSQL with which a node logs in: make it, and drop it, by the functions of migration 0047."""

from __future__ import annotations

import secrets
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from django.conf import settings
from django.db import DatabaseError, connection, transaction

from workers import node_role
from workers.errors import Refused

#: What a node's address keeps of the query: how to connect. All else, such as user and password, is the portal's own.
_KEPT = frozenset(
    {
        *("application_name", "channel_binding", "connect_timeout", "host", "hostaddr", "port"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "tcp_user_timeout"),
        *("ssl_min_protocol_version", "sslcrl", "sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs"),
    }
)


def role(node: str) -> str:
    """Return the name of a node's role."""
    return f"{node_role.PREFIX}{node}"


def make(node: str) -> str:
    """Make the node's role, or give it a new password; return DATABASE_URL as the node has it.

    Raises Refused, with the statement for a superuser, where the tables' owner may not make roles.
    """
    password = secrets.token_urlsafe(24)
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            # a verifier, so that no log of the server has the password
            encrypt = connection.connection.pgconn.encrypt_password
            verifier = encrypt(password.encode(), role(node).encode(), b"scram-sha-256").decode()
            cursor.execute("SELECT hearth_make_node_role(%s, %s)", [node, verifier])
    except DatabaseError as error:
        raise _not_made(node, _first_line(error)) from error
    return _url(node, password)


def drop(node: str) -> str:
    """Drop the node's role; return the statement for a superuser if that is not allowed, else an empty text."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT hearth_drop_node_role(%s)", [node])
    except DatabaseError:
        return f'DROP ROLE IF EXISTS "{role(node)}";'
    return ""


def _url(node: str, password: str) -> str:
    """Return the address of the database as the node reaches it and logs in."""
    parts = urlsplit(settings.NODE_DATABASE_URL or settings.DATABASE_URL)
    host = parts.netloc.rpartition("@")[2]
    query = urlencode(
        [(name, value) for name, value in parse_qsl(parts.query) if name in _KEPT], safe="/", quote_via=quote
    )
    return parts._replace(netloc=f"{quote(role(node))}:{quote(password)}@{host}", query=query, fragment="").geturl()


def _not_made(node: str, why: str) -> Refused:
    statement = f"CREATE ROLE \"{role(node)}\" LOGIN PASSWORD '…' IN ROLE hearth_node;"
    return Refused(
        "node",
        node,
        f"its role in PostgreSQL cannot be made from the portal ({why})",
        "let the tables' owner make it (docs/deployment.md, A second node) and repeat `hearth node join` with the same "
        f"token; or as a superuser run: {statement} Then set DATABASE_URL=postgresql://{role(node)}:…@…/hearth on the "
        "new machine and repeat it",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
