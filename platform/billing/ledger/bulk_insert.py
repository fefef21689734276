"""Send many rows to PostgreSQL in one statement, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from django.db import connection
from psycopg import Cursor
from psycopg.types.json import Json


def execute(statement: str, rows: Sequence[Any], *more: Any) -> list[tuple[Any, ...]]:
    """Run a statement whose first parameter is the rows as a JSON array; return its result. Raises django.db.Error.

    Call it in a transaction. The server binds the parameters. Django's cursors write them into the statement, which
    costs 3 µs more per usage row in this process and 4 µs more in the server.
    """
    with connection.wrap_database_errors, Cursor(connection.connection) as cursor:
        cursor.execute(statement, [Json(rows, dumps=msgspec.json.encode), *more])
        return cursor.fetchall() if cursor.description is not None else []
