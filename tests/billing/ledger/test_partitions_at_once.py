"""Two processes that make the same month's partition at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date

import pytest
from django.db import connection, transaction

MONTH = date(2041, 3, 1)
WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%%hearth_make_usage_partition%%'
"""


def make(_: int) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT hearth_make_usage_partition(%s)", [MONTH])
            return bool(cursor.fetchone()[0])
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
def test_the_second_waits_and_finds_the_partition_made() -> None:
    try:
        with ThreadPoolExecutor(2) as pool:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(
                    "LOCK TABLE billing_usagerecord IN ACCESS SHARE MODE"
                )  # both look, then wait for the lock
                made = [pool.submit(make, number) for number in range(2)]
                while not any(each.done() for each in made):
                    cursor.execute(WAITING)
                    if cursor.fetchone() == (2,):
                        break
                    cursor.execute("SELECT pg_stat_clear_snapshot()")
            assert sorted(each.result() for each in made) == [False, True]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS billing_usagerecord_2041_03")
