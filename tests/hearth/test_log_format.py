"""Outages take one line of a log; everything else keeps its traceback."""

from __future__ import annotations

import logging
import sys

import django.db
import psycopg
import pytest
import redis

from hearth.log_format import LineFormatter


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
