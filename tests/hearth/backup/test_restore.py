"""A backup of a running instance, made while requests run and usage waits in the log, becomes another instance."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hearth.embedded.postgres import binary
from tests.hearth.clients import Client, chat
from tests.hearth.instances import Instance, instance_of_its_own, unstarted, wait_for

#: An engine is all that a backup has to keep up with.
SMALL = ("--replicas", "1", "--placeholders", "0")
ROWS = "SELECT * FROM billing_usagerecord ORDER BY id"
#: What each tenant owes by the ledger, and by its usage.
OWED = """
    SELECT account.tenant_id, sum(entry.amount_pico), (
        SELECT sum(amount_pico) FROM billing_usagerecord AS usage
        WHERE usage.tenant_id = account.tenant_id AND purpose <> 'canary'
    ) FROM billing_ledgerentry AS entry JOIN billing_ledgeraccount AS account ON account.id = account_id
    WHERE kind = 'receivable' GROUP BY 1 ORDER BY 1
"""


@pytest.fixture(scope="module")
def source() -> Iterator[Instance]:
    with instance_of_its_own("hearth-backup-") as found:
        yield found


@pytest.fixture(scope="module")
def target() -> Iterator[Instance]:
    with instance_of_its_own("hearth-restored-") as found:
        yield found


@pytest.mark.long
def test_a_restored_instance_has_every_key_and_all_usage_up_to_the_backup(
    source: Instance, target: Instance, tmp_path: Path
) -> None:
    up = source.up(*SMALL)
    keys = [tenant["api_key"] for tenant in up["tenants"]]
    recipient = _done(source, "backup-key", str(tmp_path / "key")).strip()
    file = tmp_path / "backup"
    drain = next(role["pid"] for role in source.status()["roles"] if role["name"] == "drain")
    with Client(up["api_base"], keys) as client:
        wait_for(lambda: len(client.done) >= 4)
        wait_for(lambda: set(client.done[:4]) <= _ids(source))  # in the database
        os.kill(drain, signal.SIGSTOP)
        try:
            stopped_at = len(client.done)
            wait_for(lambda: len(client.done) >= stopped_at + 4)  # in the log alone
            before = list(client.done)
            _done(source, "backup", str(file), "--recipient", recipient)
            after = len(client.done)
            wait_for(lambda: len(client.done) > after)
        finally:
            os.kill(drain, signal.SIGCONT)
    assert not client.failed
    assert file.stat().st_mode & 0o777 == 0o600
    assert not [secret for secret in keys if secret.encode() in file.read_bytes()]
    wait_for(lambda: set(client.done) <= _ids(source))
    originals = {row[0]: row for row in _rows(source, ROWS)}
    shape = _shape(source)

    refused = source.run("restore", str(file), "--identity", str(tmp_path / "key"))
    assert (refused.returncode, "An instance runs on" in refused.stderr) == (1, True)
    assert source.run("down").returncode == 0
    refused = source.run("restore", str(file), "--identity", str(tmp_path / "key"))
    assert (refused.returncode, "holds an instance already" in refused.stderr) == (1, True)

    _is_refused_when_damaged(file, tmp_path / "key", target)
    assert "can be restored" in _done(target, "backup", "--verify", str(file), "--identity", str(tmp_path / "key"))
    _done(target, "restore", str(file), "--identity", str(tmp_path / "key"))
    restored = target.up(*SMALL)
    assert restored["tenants"] == up["tenants"]
    assert restored["admin"] == up["admin"]
    assert [chat(restored["api_base"], key) for key in keys]
    wait_for(lambda: {str(each) for each in before} <= _ids(target))
    for row in _rows(target, ROWS):
        if str(row[0]) in before:
            assert row == originals[row[0]]
    owed = _rows(target, OWED)
    assert len(owed) == len(keys)
    assert [row for row in owed if row[1] != row[2]] == []
    assert _shape(target) == shape


@pytest.mark.long
def test_what_is_replaced_is_moved_aside(source: Instance, tmp_path: Path) -> None:
    file, passphrase = tmp_path / "backup", tmp_path / "passphrase"
    passphrase.write_text("correct horse battery staple\n")
    source.up()
    source.run("down")
    exports = source.folder / "usage-exports"
    exports.mkdir()
    (exports / "usage-2026-03-16.csv.gz").touch()
    # starts the database for as long
    printed = _done(source, "backup", str(file), "--passphrase-file", str(passphrase))
    assert f"Not in it: 1 files of deleted days in {exports}. Copy them, too.\n" in printed
    again = source.run("backup", str(file), "--passphrase-file", str(passphrase))
    assert (again.returncode, "exists." in again.stderr) == (1, True)
    wrong = tmp_path / "wrong"
    wrong.write_text("another one")
    refused = source.run("restore", str(file), "--replace", "--passphrase-file", str(wrong))
    assert (refused.returncode, "not the one of this backup" in refused.stderr) == (1, True)
    secrets = (source.folder / "secrets.json").read_text()
    _done(source, "restore", str(file), "--replace", "--passphrase-file", str(passphrase))
    [aside] = source.folder.glob("replaced-*")
    assert (aside / "postgres").is_dir()
    assert (aside / "secrets.json").read_text() == (source.folder / "secrets.json").read_text() == secrets


def _is_refused_when_damaged(file: Path, identity: Path, empty: Instance) -> None:
    """Restore the backup with one other bit: nothing is written to an instance that was never started."""
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    damaged = file.with_name("damaged")
    damaged.write_bytes(content)
    refused = empty.run("restore", str(damaged), "--identity", str(identity))
    assert (refused.returncode, "cannot be decrypted" in refused.stderr) == (1, True)
    assert sorted(path.name for path in empty.folder.iterdir()) == ["beat", "engines", "lock", "logs", "run", "wal"]
    assert empty.leftovers() == []


def _done(instance: Instance, *arguments: str) -> str:
    done = instance.run(*arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _owner_url(instance: Instance) -> str:
    return unstarted(instance.folder, instance.port).owner_url()


def _rows(instance: Instance, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(_owner_url(instance)) as connection:
        return connection.execute(query).fetchall()


def _ids(instance: Instance) -> set[str]:
    time.sleep(0.05)
    return {str(row[0]) for row in _rows(instance, "SELECT id FROM billing_usagerecord")}


def _shape(instance: Instance) -> list[str]:
    """Return every definition of the database with its owners and rights."""
    command = [str(binary("pg_dump")), "--schema-only", f"--dbname={_owner_url(instance)}"]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sorted(line for line in dumped.splitlines() if not line.startswith(("--", "\\")))
