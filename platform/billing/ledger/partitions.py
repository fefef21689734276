"""Monthly partitions of the usage table, by the time in the id.

Rows of a month without a partition go to the default partition, and move when the month's partition is created. The
database's own functions create and drop partitions, as the owner of the table, so that any role may ask for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone

from billing.ledger.usage_rows import moment_of
from tenants.ids import first_id_at

PARENT = "billing_usagerecord"
DEFAULT = "billing_usagerecord_default"
MONTHS_AHEAD = 3
#: Longest time to wait for the lock on the table: meanwhile no usage is stored and none is read.
LOCK_TIMEOUT_MS = 3000
_NAME = re.compile(rf"{PARENT}_(\d{{4}})_(\d{{2}})")


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

    @property
    def table(self) -> str:
        """The name of its partition."""
        return f"{PARENT}_{self.year:04}_{self.month:02}"

    def before(self, months: int) -> Month:
        """Return the month that many months earlier."""
        number = self.year * 12 + self.month - 1 - months
        return Month(number // 12, number % 12 + 1)

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"


def ensure(now: datetime | None = None) -> tuple[str, ...]:
    """Create the partitions of this month, of the next MONTHS_AHEAD and of all months in the default partition.

    Returns the names of the new ones. Each is created, filled and attached in one transaction. Idempotent. Raises
    OperationalError if the table stays locked for LOCK_TIMEOUT_MS.
    """
    wanted = _wanted(now or timezone.now())
    return tuple(month.table for month in wanted if _call("hearth_make_usage_partition", month))


def existing() -> list[Month]:
    """Return the months that have a partition, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", [PARENT])
        found = [_NAME.fullmatch(name) for (name,) in cursor.fetchall()]
    return sorted(Month(int(match[1]), int(match[2])) for match in found if match)


def retire(month: Month) -> int | None:
    """Drop a month's partition with its rows; return their number, or None if there is no partition.

    Raises IntegrityError while the month or one of the two after it is not over, or while a tenant's request in it is
    on no final statement; OperationalError if the table stays locked.
    """
    found = _call("hearth_retire_usage_month", month)
    return None if found is None else int(found)


def month_of(moment: datetime) -> Month:
    """Return the month of an aware moment, in UTC."""
    inside = moment.astimezone(UTC)
    return Month(inside.year, inside.month)


def _wanted(now: datetime) -> list[Month]:
    month = month_of(now)
    wanted = {month}
    for _ in range(MONTHS_AHEAD):
        month = month.next
        wanted.add(month)
    stray = _first_in_default(UUID(int=0))
    while stray is not None:
        wanted.add(stray)
        stray = _first_in_default(first_id_at(stray.next.begin))
    return sorted(wanted)


def _first_in_default(bound: UUID) -> Month | None:
    """Return the month of the first row in the default partition with an id of at least ``bound``."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {DEFAULT} WHERE id >= %s ORDER BY id LIMIT 1", [bound])
        row = cursor.fetchone()
    return None if row is None else month_of(moment_of(row[0]))


def _call(function: str, month: Month) -> Any:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        cursor.execute(f"SELECT {function}(%s)", [date(month.year, month.month, 1)])
        (result,) = cursor.fetchone()
        cursor.execute("SET LOCAL lock_timeout = DEFAULT")
    return result
