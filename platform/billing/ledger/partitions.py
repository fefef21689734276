"""Partitions of the usage table by day (UTC), by the time in the id. A month that earlier releases filled stays whole.

Rows of a day without a partition go to the default partition, and move when the day's partition is created. The
database's own functions create and drop partitions, as the owner of the table, so that any role may ask for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from billing.ledger.usage_rows import moment_of
from tenants.ids import first_id_at

PARENT = "billing_usagerecord"
DEFAULT = "billing_usagerecord_default"
#: Longer than beat is likely to stand still unnoticed. The database's function for the release before has it too.
DAYS_AHEAD = 14
#: Longest time to wait for the lock on the table: meanwhile no usage is stored and none is read.
LOCK_TIMEOUT_MS = 3000
#: The index of the rows without a price. Each partition has its own, which is one page until it has had an entry.
_UNRATED_SINCE_EVER = """
    SELECT indrelid::regclass::text FROM pg_index JOIN pg_inherits ON inhrelid = indexrelid
    WHERE inhparent = 'usage_unrated'::regclass
        AND pg_relation_size(indexrelid) > current_setting('block_size')::integer
"""
_NAME = re.compile(rf"{PARENT}_(\d{{4}})_(\d{{2}})(?:_(\d{{2}}))?")
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month in UTC."""

    year: int
    month: int

    @property
    def begin(self) -> datetime:
        """Its first instant."""
        return datetime(self.year, self.month, 1, tzinfo=UTC)

    @property
    def next(self) -> Month:
        """The following month."""
        return Month(self.year + self.month // 12, self.month % 12 + 1)

    def before(self, months: int) -> Month:
        """Return the month that many months earlier."""
        number = self.year * 12 + self.month - 1 - months
        return Month(number // 12, number % 12 + 1)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """The partition of a day, or of a whole month, with the requests from ``begin`` to before ``end``."""

    begin: datetime
    end: datetime

    @property
    def name(self) -> str:
        """The day as YYYY-MM-DD, or the month as YYYY-MM."""
        return f"{self.begin:%Y-%m-%d}" if self.end - self.begin == _DAY else f"{self.begin:%Y-%m}"

    @property
    def table(self) -> str:
        """The name of its table."""
        return f"{PARENT}_{self.name.replace('-', '_')}"

    @property
    def month(self) -> Month:
        """The month that it is, or is of."""
        return month_of(self.begin)


def of_day(day: date) -> Partition:
    """Return the partition of a day in UTC."""
    begin = datetime.combine(day, time(), tzinfo=UTC)
    return Partition(begin, begin + _DAY)


def of_month(month: Month) -> Partition:
    """Return the partition of a whole month, as earlier releases made them."""
    return Partition(month.begin, month.next.begin)


def ensure(now: datetime | None = None) -> tuple[str, ...]:
    """Create the partitions of today, of the next DAYS_AHEAD days and of all days in the default partition.

    Returns the names of the new tables. Each is created, filled and attached in one transaction. Idempotent. Raises
    OperationalError if the table stays locked for LOCK_TIMEOUT_MS.
    """
    there = set(existing())
    wanted = [each for each in map(of_day, _wanted(now or timezone.now())) if each not in there]
    return tuple(each.table for each in wanted if _call("hearth_make_usage_day", each.begin.date()))


def existing() -> list[Partition]:
    """Return the partitions, oldest first, without the default one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", [PARENT])
        return sorted(named(name for (name,) in cursor.fetchall()))


def named(tables: Iterable[str]) -> list[Partition]:
    """Return the partitions with these tables. Other tables are left out."""
    found = (_NAME.fullmatch(name) for name in tables)
    return [_partition(match) for match in found if match]


def that_had_unrated() -> Q | None:
    """Return the condition of the rows in partitions that ever had one without a price; None if no partition had any.

    It reads no partition, so that looking for such rows costs the same however much usage is kept.
    """
    with connection.cursor() as cursor:
        cursor.execute(_UNRATED_SINCE_EVER)
        tables = {table for (table,) in cursor.fetchall()}
        if DEFAULT in tables:
            cursor.execute(f"SELECT EXISTS (SELECT FROM {DEFAULT} WHERE amount_pico IS NULL)")
            if cursor.fetchone()[0]:
                return Q()  # its rows may be of any time
    spans = [Q(id__gte=first_id_at(each.begin), id__lt=first_id_at(each.end)) for each in named(tables)]
    return reduce(or_, spans) if spans else None


def retire(partition: Partition) -> int | None:
    """Drop a partition with its rows; return their number, or None if there is no such partition.

    Raises IntegrityError while its month or one of the two after it is not over, while a tenant's request in it is of a
    month that is not closed, or while no export has all its rows; OperationalError if the table stays locked.
    """
    found = _call("hearth_retire_usage_partition", partition.table)
    return None if found is None else int(found)


def month_of(moment: datetime) -> Month:
    """Return the month of an aware moment, in UTC."""
    inside = moment.astimezone(UTC)
    return Month(inside.year, inside.month)


def _partition(match: re.Match[str]) -> Partition:
    if match[3] is None:
        return of_month(Month(int(match[1]), int(match[2])))
    return of_day(date(int(match[1]), int(match[2]), int(match[3])))


def _wanted(now: datetime) -> list[date]:
    today = now.astimezone(UTC).date()
    wanted = {today + each * _DAY for each in range(DAYS_AHEAD + 1)}
    stray = _first_in_default(UUID(int=0))
    while stray is not None:
        wanted.add(stray)
        stray = _first_in_default(first_id_at(of_day(stray).end))
    return sorted(wanted)


def _first_in_default(bound: UUID) -> date | None:
    """Return the day of the first row in the default partition with an id of at least ``bound``."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {DEFAULT} WHERE id >= %s ORDER BY id LIMIT 1", [bound])
        row = cursor.fetchone()
    return None if row is None else moment_of(row[0]).astimezone(UTC).date()


def _call(function: str, argument: date | str) -> Any:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        cursor.execute(f"SELECT {function}(%s)", [argument])
        (result,) = cursor.fetchone()
        cursor.execute("SET LOCAL lock_timeout = DEFAULT")
    return result
