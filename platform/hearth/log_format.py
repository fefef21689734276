"""The format of log lines: an error because PostgreSQL, Redis or the broker is unavailable has no traceback.

During an outage every task and every tick fails in the same way, so tracebacks would hide what else is wrong.
"""

from __future__ import annotations

import logging
from types import TracebackType

import django.db
import kombu.exceptions
import redis.exceptions

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_DATABASE = (django.db.OperationalError, django.db.InterfaceError)
_BROKER = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, kombu.exceptions.OperationalError)
#: Classes of SQLSTATE (PostgreSQL, appendix A) of a server that went away or is not there yet.
_AWAY = ("08", "57")


class LineFormatter(logging.Formatter):
    """Formats tracebacks, except of outages."""

    def formatException(self, ei: ExcInfo) -> str:
        """Return the traceback; of an outage its error alone."""
        error = ei[1]
        if error is None or not is_outage(error):
            return super().formatException(ei)
        return f"{type(error).__module__}.{type(error).__name__}: {' '.join(str(error).split())}"


def is_outage(error: BaseException) -> bool:
    """Return whether a server that Hearth needs is unavailable, and nothing in Hearth is wrong."""
    if isinstance(error, _DATABASE):  # a deadlock is one too
        state: str | None = getattr(error.__cause__, "sqlstate", None)
        return state is None or state.startswith(_AWAY)
    return isinstance(error, (*_BROKER, ConnectionError))
