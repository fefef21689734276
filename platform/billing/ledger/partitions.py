"""Monthly partitions of the usage table, by the time in the id. Requires the role that owns the table.

Rows of a month without a partition go to the default partition, and move when the month's partition is created.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone

from billing.ledger.usage_rows import moment_of
from tenants.ids import first_id_at
from tenants.rls import enable_sql

PARENT = "billing_usagerecord"
DEFAULT = "billing_usagerecord_default"
MONTHS_AHEAD = 3


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


def ensure(now: datetime | None = None) -> tuple[str, ...]:
    """Create the partitions of this month, of the next MONTHS_AHEAD and of all months in the default partition.

    Returns the names of the new ones. Each is created, filled and attached in one transaction. Idempotent.
    """
    return tuple(month.table for month in _wanted(now or timezone.now()) if _ensure(month))


def _wanted(now: datetime) -> list[Month]:
    month = _month_of(now)
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
    return None if row is None else _month_of(moment_of(row[0]))


def _month_of(moment: datetime) -> Month:
    inside = moment.astimezone(UTC)
    return Month(inside.year, inside.month)


def _ensure(month: Month) -> bool:
    """Create one partition. PostgreSQL attaches it only when none of its rows is left in the default one."""
    first, behind = first_id_at(month.begin), first_id_at(month.next.begin)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [month.table])
        if cursor.fetchone() != (None,):
            return False
        cursor.execute(f"LOCK TABLE {PARENT} IN ACCESS EXCLUSIVE MODE")
        cursor.execute(f"CREATE TABLE {month.table} (LIKE {PARENT} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        cursor.execute(
            f"WITH moved AS (DELETE FROM {DEFAULT} WHERE id >= %s AND id < %s RETURNING *) "
            f"INSERT INTO {month.table} SELECT * FROM moved",
            [first, behind],
        )
        cursor.execute(
            f"ALTER TABLE {PARENT} ATTACH PARTITION {month.table} FOR VALUES FROM ('{first}') TO ('{behind}')"
        )
        # A partition can be read under its own name, so it needs its own policy.
        cursor.execute(enable_sql(month.table))
    return True
