"""Outages take one line of a log; everything else keeps its traceback."""

from __future__ import annotations

import json
import logging
import sys

import django.db
import psycopg
import pytest
import redis

from hearth.log_format import JsonFormatter, LineFormatter
from tenants.request_log import REQUEST_ID, RequestIds


def lines(error: Exception, cause: Exception | None = None) -> list[str]:
    """Return the lines of a log entry about the error."""
    try:
        raise error from cause
    except Exception:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "the task failed", None, sys.exc_info())
    return LineFormatter("%(message)s").format(record).splitlines()


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (django.db.OperationalError("connection refused\nIs the server running?"), psycopg.OperationalError()),
        (django.db.OperationalError("the database system is starting up"), psycopg.errors.CannotConnectNow()),
        (django.db.OperationalError("terminating connection"), psycopg.errors.AdminShutdown()),
        (
            redis.exceptions.BusyLoadingError("Redis is loading"),
            IndexError("pop from empty list"),
        ),
        (ConnectionResetError("reset"), None),
    ],
)
def test_an_outage_is_one_line_that_names_it(error: Exception, cause: Exception | None) -> None:
    found = lines(error, cause)
    assert found[0] == "the task failed"
    assert len(found) == 2
    assert str(error).split()[0] in found[1]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("x"), None),
        (django.db.OperationalError("deadlock detected"), psycopg.errors.DeadlockDetected()),
        (django.db.ProgrammingError("no such column"), psycopg.errors.UndefinedColumn()),
    ],
)
def test_anything_else_keeps_its_traceback(error: Exception, cause: Exception | None) -> None:
    assert "Traceback (most recent call last):" in lines(error, cause)


def test_json_lines_have_the_requests_id_and_one_line_for_an_error() -> None:
    formatter = JsonFormatter(role="gateway", node="n1")
    token = REQUEST_ID.set("0195")
    try:
        raise ValueError("x\ny")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "task %s failed", ("7",), sys.exc_info())
    finally:
        assert RequestIds().filter(record)
        REQUEST_ID.reset(token)
    line = formatter.format(record)
    found = json.loads(line)
    assert "\n" not in line
    assert (found["role"], found["node"], found["message"]) == ("gateway", "n1", "task 7 failed")
    assert (found["request_id"], "ValueError: x" in found["error"]) == ("0195", True)
    assert LineFormatter("%(message)s").format(record).startswith("task 7 failed request=0195\nTraceback")
    outside = logging.LogRecord("n", logging.INFO, "f", 1, "quiet", (), None)
    assert RequestIds().filter(outside)
    assert "request_id" not in json.loads(formatter.format(outside))
    assert LineFormatter("%(message)s").format(outside) == "quiet"
