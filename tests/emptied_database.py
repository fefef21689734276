"""What a test that committed leaves behind is deleted, in a tenth of the time of Django's flush.

A flush truncates every table, of which a test fills a few, and makes all content types and permissions again: 0.5 s
after each of a thousand tests.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

#: What migrations fill for good.
KEPT = ("django_migrations", "django_content_type", "auth_permission")
FILLED = """
    SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0
    AND relname <> ALL(%s)
"""


def empty(superuser_url: str) -> None:
    """Delete every row of a migrated database that its migrations did not make, but for the row of the policy epoch.

    As a superuser, for whom no row is hidden; without triggers, which protect the ledger, and foreign keys.
    """
    with psycopg.connect(superuser_url) as connection:
        connection.execute("SET LOCAL session_replication_role = replica")
        for (table,) in connection.execute(FILLED, [list(KEPT)]).fetchall():
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        connection.execute("INSERT INTO tenants_policyepoch (id, value) VALUES (1, 1)")
