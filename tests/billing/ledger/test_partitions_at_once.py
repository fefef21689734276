"""Two processes that make or retire the same day's partition at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import pytest
from django.db import connection, transaction

pytestmark = pytest.mark.django_db(transaction=True)
WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE %s
"""


def twice_at_once(function: str, argument: date | str) -> list[Any]:
    """Call a function from two sessions, both of which wait before either gets the table; return their results."""

    def call(_: int) -> Any:
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT {function}(%s)", [argument])
                return cursor.fetchone()[0]
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE billing_usagerecord IN ACCESS SHARE MODE")
            called = [pool.submit(call, number) for number in range(2)]
            while not any(each.done() for each in called):
                cursor.execute(WAITING, [f"%{function}%"])
                if cursor.fetchone() == (2,):
                    break
                cursor.execute("SELECT pg_stat_clear_snapshot()")
        return [each.result() for each in called]


def drop(table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {table}")


def test_the_second_waits_and_finds_the_partition_made() -> None:
    try:
        assert sorted(twice_at_once("hearth_make_usage_day", date(2041, 3, 1))) == [False, True]
    finally:
        drop("billing_usagerecord_2041_03_01")


def test_the_second_waits_and_finds_the_partition_retired() -> None:
    table = "billing_usagerecord_2021_03_01"
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT hearth_make_usage_day(%s)", [date(2021, 3, 1)])
        assert sorted(twice_at_once("hearth_retire_usage_partition", table), key=str) == [0, None]
    finally:
        drop(table)
