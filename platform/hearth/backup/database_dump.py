"""Dump and restore the database with pg_dump and pg_restore of the embedded PostgreSQL, as its owner.

They serve an own server of DATABASE_URL as well: pg_dump reads servers up to its own major version, pg_restore writes
to those that know the settings it sends first. Owners and rights are left out, because roles have other names
elsewhere; :func:`restore` grants the tenant role its rights again, and each migration those of the role that runs
Hearth and of nodes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, LiteralString

import psycopg
from psycopg.pq import Conninfo

from hearth.backup.errors import BackupError, BackupUnreadable, TargetNotEmpty
from hearth.embedded.postgres import MAJOR_VERSION, binary

#: A backup is worth waiting for: the database of a busy machine may take long to answer.
CONNECT_SECONDS = 60
#: How long pg_dump waits for a table that a migration locks.
LOCK_TIMEOUT = "60s"
#: The oldest server to which pg_restore writes: it sets ``transaction_timeout`` first.
OLDEST_RESTORED = 17
TABLES = """
    SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = 'public' AND relkind IN ('r', 'p', 'v', 'S')
"""
#: The roles that policies name.
PREPARE_ROLES = """
    DO $$ DECLARE missing text; BEGIN
        FOR missing IN SELECT unnest(ARRAY['hearth_tenant', 'hearth_node']) EXCEPT SELECT rolname FROM pg_roles
        LOOP EXECUTE format('CREATE ROLE %I NOLOGIN', missing); END LOOP;
    END $$
"""
GRANT_TENANT_ROLE = """
    DO $$ DECLARE readable text; BEGIN
        GRANT USAGE ON SCHEMA public TO hearth_tenant;
        FOR readable IN SELECT DISTINCT tablename FROM pg_policies
            WHERE schemaname = 'public' AND 'hearth_tenant' = ANY (roles)
        LOOP EXECUTE format('GRANT SELECT ON public.%I TO hearth_tenant', readable); END LOOP;
    END $$
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One moment of the database, which a dump sees while the transaction is open."""

    id: str
    #: ISO 8601, UTC.
    taken_at: str
    server_version: int
    #: Every applied migration as ``app.name``.
    migrations: tuple[str, ...]


@contextmanager
def snapshot(url: str) -> Iterator[Snapshot]:
    """Hold one moment of the database for the block. Raises BackupError if the database does not answer."""
    try:
        connection = psycopg.connect(url, connect_timeout=CONNECT_SECONDS)
    except psycopg.Error as error:
        raise BackupError(f"The database does not answer: {error}.", "Start it, then try again.") from error
    with connection:
        require_dumpable(connection.info.server_version)
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        found = connection.execute("SELECT pg_export_snapshot(), to_char(now() AT TIME ZONE 'UTC', %s)", [_ISO])
        name, taken_at = found.fetchone() or ("", "")
        rows = connection.execute("SELECT app || '.' || name FROM django_migrations ORDER BY 1").fetchall()
        yield Snapshot(
            id=name,
            taken_at=taken_at,
            server_version=connection.info.server_version,
            migrations=tuple(row[0] for row in rows),
        )


_ISO = 'YYYY-MM-DD"T"HH24:MI:SS"Z"'


@contextmanager
def dump(url: str, moment: Snapshot) -> Iterator[IO[bytes]]:
    """Yield the dump of the database at that moment as a stream. Raises BackupError if pg_dump fails."""
    # Row-level security holds for the owner too, and shows it every row.
    options = ["--format=custom", "--no-owner", "--no-privileges", "--no-password", "--enable-row-security"]
    command: list[str | Path] = [
        binary("pg_dump"),
        *options,
        f"--snapshot={moment.id}",
        f"--lock-wait-timeout={LOCK_TIMEOUT}",
    ]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, env=_environment(url), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.stdout.close()
            status = process.wait()
        if status != 0:
            raise BackupError(f"pg_dump failed: {_last_line(errors)}.", "No backup was made.")


def require_dumpable(server_version: int) -> None:
    """Raise BackupError if pg_dump would refuse a server of this version, as libpq gives it."""
    major = server_version // 10_000
    if major > int(MAJOR_VERSION):
        raise BackupError(
            f"The database is PostgreSQL {major}, and Hearth's pg_dump is of {MAJOR_VERSION}.",
            "Back it up with the programs of its own version, or use a version of Hearth that has them.",
        )


def require_restorable(server_version: int) -> None:
    """Raise BackupError if a dump cannot be restored into a server of this version, as libpq gives it."""
    major = server_version // 10_000
    if not OLDEST_RESTORED <= major <= int(MAJOR_VERSION):
        raise BackupError(
            f"The database is PostgreSQL {major}, and Hearth's pg_restore writes to {OLDEST_RESTORED} to "
            f"{MAJOR_VERSION}.",
            "Name an empty database of a server of such a version.",
        )


def require_empty(url: str) -> None:
    """Raise TargetNotEmpty if the database has a table, and BackupError if it does not answer or cannot be restored."""
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_SECONDS) as connection:
            require_restorable(connection.info.server_version)
            tables = connection.execute(TABLES).fetchone()
    except psycopg.Error as error:
        raise BackupError(f"The database does not answer: {error}.", "Start it, then try again.") from error
    if tables != (0,):
        raise TargetNotEmpty("The database of DATABASE_URL has tables.", "Create an empty database and name that.")


def check(pieces: Iterable[bytes]) -> None:
    """Read a whole dump with pg_restore, which writes it nowhere. Raises BackupUnreadable."""
    _run([binary("pg_restore"), "--file=/dev/null"], pieces, environment=dict(os.environ))


def restore(url: str, pieces: Iterable[bytes]) -> None:
    """Restore a dump into an empty database, in one transaction. Raises BackupError."""
    _execute(url, PREPARE_ROLES)
    database = psycopg.conninfo.conninfo_to_dict(url).get("dbname", "hearth")
    options = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", "--no-password"]
    _run([binary("pg_restore"), *options, f"--dbname={database}"], pieces, environment=_environment(url))
    _execute(url, GRANT_TENANT_ROLE)


def _execute(url: str, statement: LiteralString) -> None:
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)
    except psycopg.Error as error:
        raise BackupError(
            f"The database refused a step of the restore: {error}.", "Its owner must be able to make roles."
        ) from error


def _run(command: Sequence[str | Path], pieces: Iterable[bytes], *, environment: dict[str, str]) -> None:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=errors, stderr=errors)
        assert process.stdin is not None
        try:
            for piece in pieces:
                process.stdin.write(piece)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended, and its messages say why
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.wait() != 0:
            raise BackupUnreadable(f"pg_restore refused the dump: {_last_line(errors)}.", "Use another copy of it.")


def _environment(url: str) -> dict[str, str]:
    """Return the environment of a PostgreSQL program: a command line with a password could be read by other users."""
    options = {
        option.envvar.decode(): option.val.decode()
        for option in Conninfo.parse(url.encode())
        if option.val is not None and option.envvar is not None
    }
    return dict(os.environ) | options


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return (lines or ["no message"])[-1].removeprefix("pg_dump: ").removeprefix("pg_restore: ").rstrip(".")
