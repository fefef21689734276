"""Write the requests of a partition to a file, before the partition is retired: CSV with a header, in gzip.

The columns are those of the table, without the texts that clients sent, so that erasing a tenant needs no change to a
file. Beside it lies its SHA-256 as ``sha256sum`` reads it. A file is complete, or has the ending ``.part``.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from psycopg import sql

from billing.ledger.partitions import PARENT, Partition
from billing.models import UsageExport, UsageRecord
from tenants.ids import first_id_at

#: What clients sent in words of their own. ``retention.erasure`` erases it from the table.
LEFT_OUT = frozenset({"client_request_id", "error_message", "tags", "end_user"})
COLUMNS = tuple(each.attname for each in UsageRecord._meta.concrete_fields if each.attname not in LEFT_OUT)
_READ_BYTES = 1 << 20
#: First half of the advisory lock of a partition's export: "exp" in ASCII.
_LOCK = 0x657870
_COPY = sql.SQL(
    "COPY (SELECT {columns} FROM {table} WHERE id >= {first} AND id < {behind} ORDER BY id) "
    "TO STDOUT WITH (FORMAT csv, HEADER)"
)


class NotExported(Exception):
    """A partition's file was not written, or is not what was written. Carries ``partition`` and ``reason``."""

    def __init__(self, partition: str, reason: str) -> None:
        super().__init__(f"{partition} is not exported: {reason}")
        self.partition = partition
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    rows: int
    file_bytes: int
    sha256: str


def ensure(partition: Partition) -> UsageExport | None:
    """Return the partition's export, which is made unless there is one with its rows; None if it has no rows.

    Two processes at once wait for each other. Raises NotExported, and django.db.Error.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, partition.table])
        rows = _rows(partition)
        if not rows:
            return None
        if unrated := _unrated(partition):
            raise NotExported(partition.name, f"{unrated} of its requests have no price yet: set one of their model")
        earlier = UsageExport.objects.filter(partition=partition.table)
        for found in earlier.filter(retired_at=None, rows=rows, node=settings.NODE_NAME):
            if not fault(found):
                return found
        path = _new_path(partition)
        try:
            written = _write(partition, path)
        except OSError as error:
            raise NotExported(partition.name, f"{path}: {error.strerror or error}") from error
        return UsageExport.objects.create(
            partition=partition.table,
            begins_at=partition.begin,
            ends_at=partition.end,
            rows=written.rows,
            file_bytes=written.file_bytes,
            sha256=written.sha256,
            node=settings.NODE_NAME,
            path=str(path),
        )


def fault(export: UsageExport) -> str:
    """Return what is wrong with the file on this machine; empty if it is as it was written."""
    try:
        with open(export.path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{export.path}: {error.strerror or error}"
    return "" if found == export.sha256 else f"{export.path}: its SHA-256 is {found}, not {export.sha256}"


def _rows(partition: Partition) -> int:
    return _within(partition).count()


def _within(partition: Partition) -> QuerySet[UsageRecord]:
    return UsageRecord.objects.filter(id__gte=first_id_at(partition.begin), id__lt=first_id_at(partition.end))


def _unrated(partition: Partition) -> int:
    """Return how many requests are charged once their model has a price, which the file would lack."""
    return _within(partition).filter(amount_pico=None, purpose=UsageRecord.Purpose.TENANT).count()


def _new_path(partition: Partition) -> Path:
    """Return where to write. A partition that was exported before gets a number, so that no file is replaced."""
    folder = Path(settings.USAGE_EXPORT_DIR)
    numbers = (f"-{each}" if each > 1 else "" for each in count(1))
    return next(path for each in numbers if not (path := folder / f"usage-{partition.name}{each}.csv.gz").exists())


def _write(partition: Partition, path: Path) -> _Written:
    """Write the file and read it again. Raises OSError, and NotExported if it was not read as it was written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(path.name + ".part")
    try:
        with _gzip(partial) as file:
            rows = _copy(partition, file)
        with open(partial, "rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        _require_readable(partition, partial)
        path.with_name(path.name + ".sha256").write_text(f"{digest}  {path.name}\n")
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return _Written(rows=rows, file_bytes=path.stat().st_size, sha256=digest)


def _copy(partition: Partition, file: IO[bytes]) -> int:
    columns: list[sql.Composable] = [sql.Identifier(each) for each in COLUMNS]
    statement = _COPY.format(
        columns=sql.SQL(", ").join(columns),
        table=sql.Identifier(PARENT),
        first=first_id_at(partition.begin),
        behind=first_id_at(partition.end),
    )
    with connection.cursor() as cursor, connection.wrap_database_errors:
        with cursor.copy(statement) as copy:
            for block in copy:
                file.write(block)
        return int(cursor.rowcount)


@contextmanager
def _gzip(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for its owner alone, and return once it is on the disk. The same rows make the same bytes."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as raw:
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
            yield packed  # type: ignore[misc]  # a GzipFile writes bytes like any file
        raw.flush()
        os.fsync(raw.fileno())


def _require_readable(partition: Partition, path: Path) -> None:
    """Unpack the file: gzip compares its checksum. Raises NotExported, OSError."""
    try:
        with gzip.open(path) as file:
            while file.read(_READ_BYTES):
                pass
    except (EOFError, gzip.BadGzipFile) as error:
        raise NotExported(partition.name, f"{path} cannot be read back: {error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
