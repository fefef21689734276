"""Django's PostgreSQL backend for servers that fail over: a read-only server counts as one that is unavailable.

After a failover a connection may lead to a server that is no longer the primary. It answers reads from the past and
refuses writes. Such a connection is closed, so that the next one looks for the primary among the hosts of DATABASE_URL,
and the refused statement raises OperationalError: what waits for an unavailable database waits for the primary too.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from django.db.utils import DatabaseErrorWrapper, OperationalError
from django.utils.functional import cached_property


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection that wants a server that accepts writes."""

    @cached_property
    def wrap_database_errors(self) -> _Errors:
        """Return the context manager in which every call of the driver runs."""
        return _Errors(self)

    def is_usable(self) -> bool:
        """Return whether the server responds and accepts writes. Checked before a kept connection is used again."""
        if self.connection is None:
            return False
        try:
            with self.connection.cursor() as cursor:
                found = cursor.execute("SHOW transaction_read_only").fetchone()
        except psycopg.Error:
            return False
        return bool(found == ("off",))


class _Errors(DatabaseErrorWrapper):
    def __init__(self, wrapper: DatabaseWrapper) -> None:
        super().__init__(wrapper)
        self._wrapper = wrapper

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        if isinstance(exc_value, psycopg.errors.ReadOnlySqlTransaction):
            self._wrapper.errors_occurred = True
            if self._wrapper.connection is not None:
                # The driver's connection only: Django then ends a transaction as if the server had closed it.
                self._wrapper.connection.close()
            raise OperationalError(*exc_value.args).with_traceback(traceback) from exc_value
        return super().__exit__(exc_type, exc_value, traceback)
