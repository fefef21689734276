"""Precompiled queries, for those run several times a second: Django builds their SQL ten times slower than it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connection
from django.db.models import QuerySet


class CompiledQuery:
    """A query whose SQL and parameters are built once, at its first run. Thread-safe."""

    def __init__(self, query: Callable[[], QuerySet[Any, Any]]) -> None:
        """``query`` names its columns (``values_list``); values are returned as psycopg reads them.

        Its parameters never change, so it must not contain the current time.
        """
        self._query = query
        self._made: tuple[str, tuple[Any, ...]] | None = None

    def rows(self) -> list[tuple[Any, ...]]:
        """Run the query and return its rows. Raises django.db.Error."""
        if self._made is None:
            self._made = self._query().query.sql_with_params()
        with connection.cursor() as cursor:
            cursor.execute(*self._made)
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
