"""The partitions of usage and the files of those that were retired, for operators. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from django.db import connection

from billing.ledger import partitions
from billing.ledger.partitions import DEFAULT, PARENT

#: The sizes include indexes.
_SIZES = """
    SELECT part.relname, part.reltuples::bigint, pg_total_relation_size(part.oid)
    FROM pg_inherits JOIN pg_class part ON part.oid = inhrelid WHERE inhparent = %s::regclass
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One partition. ``rows``: as the last ANALYZE estimated; None: it was never analysed.

    The default one, of days that have no partition yet, has no begin and no end.
    """

    name: str
    table: str
    begins_at: datetime | None
    ends_at: datetime | None
    rows: int | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMonth:
    """The partitions of a month together. ``rows``: of those that were analysed."""

    month: str
    partitions: int
    rows: int
    bytes: int


def read() -> list[Stored]:
    """Return every partition, oldest first; last the default one."""
    with connection.cursor() as cursor:
        cursor.execute(_SIZES, [PARENT])
        sizes = {table: (rows if rows >= 0 else None, size) for table, rows, size in cursor.fetchall()}
    found = [
        Stored(
            name=each.name,
            table=each.table,
            begins_at=each.begin,
            ends_at=each.end,
            rows=sizes[each.table][0],
            bytes=sizes[each.table][1],
        )
        for each in sorted(partitions.named(sizes))
    ]
    rows, size = sizes[DEFAULT]
    return [*found, Stored(name="default", table=DEFAULT, begins_at=None, ends_at=None, rows=rows, bytes=size)]


def by_month(found: list[Stored]) -> list[StoredMonth]:
    """Return the partitions of :func:`read` by month; the default one last."""
    return [
        StoredMonth(
            month=name,
            partitions=len(parts),
            rows=sum(each.rows or 0 for each in parts),
            bytes=sum(each.bytes for each in parts),
        )
        for name, group in groupby(found, key=lambda each: each.name if each.begins_at is None else each.name[:7])
        for parts in [list(group)]
    ]
