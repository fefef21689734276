"""Queries that are asked several times a second: Django takes ten times as long to make their SQL as to run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connection
from django.db.models import QuerySet


class CompiledQuery:
    """A query whose SQL is made once, when it is first asked, with its parameters. Thread-safe."""

    def __init__(self, query: Callable[[], QuerySet[Any, Any]]) -> None:
        """``query`` names its columns (``values_list``), whose values come as psycopg reads them.

        What it compares with stays what it was at first, so it may hold no time of day.
        """
        self._query = query
        self._made: tuple[str, tuple[Any, ...]] | None = None

    def rows(self) -> list[tuple[Any, ...]]:
        """Return what there is now. Raises django.db.Error."""
        if self._made is None:
            self._made = self._query().query.sql_with_params()
        with connection.cursor() as cursor:
            cursor.execute(*self._made)
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
