"""A backup of a database that an operator made becomes another such database, with the rights of its running role."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from hearth import secrets
from hearth.backup import database_dump
from hearth.backup.errors import BackupError
from hearth.embedded.postgres import PostgresServer
from hearth.paths import LEFT_MARK, sockets_dir

PASSWORD = "only-for-this-test"


@dataclass(frozen=True, slots=True)
class Own:
    """An instance in parts on a database of its own, run by a role that is not the owner."""

    folder: Path
    owner: str
    runner: str

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {
            "HEARTH_DATA_DIR": str(self.folder),
            "DATABASE_URL": self.runner,
            "DATABASE_OWNER_URL": self.owner,
            "HEARTH_DEMO": "1",
        }
        command = [sys.executable, "-m", "hearth.cli", *arguments]
        return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)

    def done(self, *arguments: str) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        return ended.stdout


@pytest.fixture
def server(instance_dir: Path) -> Iterator[PostgresServer]:
    postgres = PostgresServer(
        data_dir=instance_dir / "postgres",
        sockets_dir=sockets_dir(instance_dir),
        log_path=instance_dir / "postgres.log",
        passwords=secrets.load_or_create(instance_dir).database_passwords,
        durable=False,
    )
    postgres.start()
    yield postgres
    postgres.stop()


def superuser_url(server: PostgresServer) -> str:
    netloc = f"hearth_super:{server.passwords.superuser}@"
    return urlsplit(server.urls.owner)._replace(netloc=netloc, path="/postgres").geturl()


@pytest.fixture
def source(server: PostgresServer, tmp_path: Path) -> Own:
    """An instance whose database is filled."""
    with psycopg.connect(superuser_url(server), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE runner LOGIN PASSWORD '{PASSWORD}'")
        connection.execute("GRANT hearth_tenant TO runner WITH INHERIT FALSE, SET TRUE")
    found = database(server, "first", tmp_path)
    found.done("bootstrap", "--engine", "simulated")
    return found


def database(server: PostgresServer, name: str, folder: Path) -> Own:
    """Make an empty database as the documentation says."""
    with psycopg.connect(superuser_url(server), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} OWNER hearth_owner TEMPLATE template0")
    owner = urlsplit(server.urls.owner)._replace(path=f"/{name}")
    return Own(folder / name, owner.geturl(), owner._replace(netloc=f"runner:{PASSWORD}@").geturl())


@pytest.mark.long
def test_a_database_of_an_operator_is_restored_into_an_empty_one(
    server: PostgresServer, source: Own, tmp_path: Path
) -> None:
    file, passphrase = str(tmp_path / "backup"), ("--passphrase-file", str(tmp_path / "passphrase"))
    (tmp_path / "passphrase").write_text("correct horse battery staple\n")
    (source.folder / LEFT_MARK).touch()
    source.done("backup", file, *passphrase)
    assert PASSWORD.encode() not in Path(file).read_bytes()

    used = Own(tmp_path / "used", source.owner, source.runner)
    refused = used.run("restore", file, *passphrase)
    assert (refused.returncode, "The database of DATABASE_URL has tables." in refused.stderr) == (1, True)
    assert not (used.folder / secrets.FILE_NAME).exists()

    target = database(server, "second", tmp_path)
    (tmp_path / "damaged").write_bytes(Path(file).read_bytes()[:-50])
    assert target.run("restore", str(tmp_path / "damaged"), *passphrase).returncode == 1
    with psycopg.connect(target.owner) as connection:
        assert connection.execute(database_dump.TABLES).fetchone() == (0,)

    target.done("restore", file, *passphrase)
    assert (target.folder / LEFT_MARK).exists()
    target.done("bootstrap", "--engine", "simulated")
    for query in ("SELECT id, slug FROM tenants_tenant ORDER BY id", "SELECT * FROM tenants_apikey ORDER BY id"):
        with psycopg.connect(source.runner) as before, psycopg.connect(target.runner) as after:
            rows = before.execute(query).fetchall()
            assert rows
            assert after.execute(query).fetchall() == rows
    with psycopg.connect(target.runner) as connection:
        connection.execute("SET ROLE hearth_tenant")
        with pytest.raises(psycopg.errors.UndefinedObject):
            connection.execute("SELECT FROM tenants_tenant")


@pytest.mark.parametrize("version", [160_009, 190_000])
def test_a_server_to_which_a_backup_cannot_go_is_named(version: int) -> None:
    with pytest.raises(BackupError, match=f"PostgreSQL {version // 10_000}, and .* to 17 to 18"):
        database_dump.require_restorable(version)


def test_a_server_newer_than_pg_dump_is_named() -> None:
    database_dump.require_dumpable(160_009)
    with pytest.raises(BackupError, match="PostgreSQL 19, and Hearth's pg_dump is of 18"):
        database_dump.require_dumpable(190_000)
