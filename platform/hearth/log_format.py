"""The formats of log lines, for people or as JSON.

An error because PostgreSQL, Redis or the broker is unavailable has no traceback. During an outage every task and every
tick fails in the same way, so tracebacks would hide what else is wrong.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from types import TracebackType

import django.db
import kombu.exceptions
import redis.exceptions

from hearth import environment

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_DATABASE = (django.db.OperationalError, django.db.InterfaceError)
_BROKER = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, kombu.exceptions.OperationalError)
#: Beginnings of SQLSTATE (PostgreSQL, appendix A) of a server that went away, is not there yet, or is read-only.
_AWAY = ("08", "57", "25006")


class LineFormatter(logging.Formatter):
    """Formats a record as a line with the request's id, if there is one, and tracebacks, except of outages."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a traceback."""
        line, request_id = super().formatMessage(record), getattr(record, "request_id", "")
        return f"{line} request={request_id}" if request_id and request_id not in line else line

    def formatException(self, ei: ExcInfo) -> str:
        """Return the traceback; of an outage its error alone."""
        error = ei[1]
        if error is None or not is_outage(error):
            return super().formatException(ei)
        return f"{type(error).__module__}.{type(error).__name__}: {' '.join(str(error).split())}"


class JsonFormatter(LineFormatter):
    """Formats a record as one JSON object on one line."""

    def __init__(self, *, role: str, node: str) -> None:
        super().__init__()
        self._place = {"role": role, "node": node, "process": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            **self._place,
            "message": record.getMessage(),
        }
        if request_id := getattr(record, "request_id", ""):
            entry["request_id"] = request_id
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def json_from_environment() -> JsonFormatter:
    """Return the formatter of a server that logs before Django is set up (``instance/granian_json_log.json``)."""
    found = environment.read()
    return JsonFormatter(role=found.role, node=found.node)


def is_outage(error: BaseException) -> bool:
    """Return whether a server that Hearth needs is unavailable, and nothing in Hearth is wrong."""
    if isinstance(error, _DATABASE):  # a deadlock is one too
        state: str | None = getattr(error.__cause__, "sqlstate", None)
        return state is None or state.startswith(_AWAY)
    return isinstance(error, (*_BROKER, ConnectionError))
