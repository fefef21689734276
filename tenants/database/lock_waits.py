"""What a migration waits for: its statement, the tables that are in use, and the sessions that use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the hearth command reads WAITING, and loads no Django
    from django.db.backends.base.base import BaseDatabaseWrapper

#: The beginning of each line that reports a wait.
WAITING = "a table is in use, trying again"
#: Sessions named in a report, the oldest transactions first.
MOST_SESSIONS = 3
STATEMENT_CHARACTERS = 120
_SESSIONS = r"""
    SELECT DISTINCT class.relname, activity.pid, activity.usename, activity.application_name, activity.xact_start
    FROM pg_locks AS lock
    JOIN pg_class AS class ON class.oid = lock.relation
    JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
    WHERE lock.granted AND activity.datname = current_database() AND lock.pid <> pg_backend_pid()
        AND class.relkind IN ('r', 'p') AND %s ~ ('\m' || class.relname || '\M')
    ORDER BY activity.xact_start, activity.pid
"""


class FailedStatement:
    """A wrapper for ``connection.execute_wrapper`` that keeps the text of the last statement that failed."""

    def __init__(self) -> None:
        self.sql = ""

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        """Execute one statement."""
        try:
            return execute(sql, params, many, context)
        except Exception:
            self.sql = str(sql)
            raise


def describe(connection: BaseDatabaseWrapper, statement: str) -> str:
    """Return one line: the statement, and who uses its tables now. Raises django.db.Error."""
    with connection.cursor() as cursor:
        cursor.execute(_SESSIONS, [statement])
        found = cursor.fetchall()
    users = [_session(*row) for row in found[:MOST_SESSIONS]]
    if len(found) > MOST_SESSIONS:
        users.append(f"{len(found) - MOST_SESSIONS} more")
    text = " ".join(statement.split())
    shown = text if len(text) <= STATEMENT_CHARACTERS else f"{text[:STATEMENT_CHARACTERS]}…"
    return f"{shown} waits for {'; '.join(users) or 'a table that nobody uses any more'}"


def _session(table: str, pid: int, user: str, application: str, since: Any) -> str:
    """Describe one session. ``since`` is None if this role may not see it."""
    began = f", since {since:%H:%M:%S %Z}" if since is not None else ""
    return f"{table}, in use by process {pid} of PostgreSQL ({application or user}{began})"
