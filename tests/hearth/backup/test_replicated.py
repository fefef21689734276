"""Backup, restore and upgrade of an instance on a replicated PostgreSQL and a Redis behind Sentinels that fail over."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from hearth import secrets
from tests.hearth.clients import Client
from tests.hearth.instances import Instance, instance_of_its_own, wait_for
from tests.replicated import postgres as replicated_postgres
from tests.replicated import redis as replicated_redis
from tests.replicated.postgres import PostgresPair
from tests.replicated.redis import SentinelSet

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

RESTORED = "restored"
PATIENCE_SECONDS = 600
#: What is compared: by then nothing of it changes.
TABLES = ("tenants_tenant", "tenants_apikey", "catalogue_model", "billing_priceversion")


@dataclass(frozen=True, slots=True)
class Site:
    """A running instance, and its servers."""

    instance: Instance
    pair: PostgresPair
    sentinels: SentinelSet

    def fail_over(self) -> None:
        """Lose both primaries: the standby and the replica take their places, and get new ones behind them."""
        self.pair.fail_over()
        self.pair.rebuild_standby()
        self.pair.synchronous("*")
        before = self.sentinels.primary()
        self.sentinels.kill(before)
        replicated_redis.wait_for(lambda: self.sentinels.primary() != before)
        self.sentinels.replace_missing()

    def serves(self) -> bool:
        """Return whether a request is answered."""
        up = self.instance.up_json
        with Client(up["api_base"], [up["tenants"][0]["api_key"]]) as client:
            wait_for(lambda: bool(client.done or client.failed))
        return not client.failed


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with instance_of_its_own("hearth-replicated-") as own:
        passwords = secrets.load_or_create(own.folder).database_passwords
        with replicated_postgres.running(passwords) as pair, replicated_redis.running() as sentinels:
            pair.synchronous("*")
            settings = {
                "DATABASE_URL": pair.app_url,
                "DATABASE_OWNER_URL": pair.owner_url,
                "REDIS_URL": sentinels.url,
                "HEARTH_DEMO": "1",
            }
            found = Instance(own.folder, own.port, settings)
            try:
                done(found, "up", "--detach", "--engine", "simulated")
                yield Site(found, pair, sentinels)
            finally:
                found.run("down")


def done(instance: Instance, *arguments: str) -> str:
    """Run a command that must succeed, and return what it prints."""
    ended = instance.run(*arguments, timeout_seconds=PATIENCE_SECONDS)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def fail_over_amid_a_backup(site: Site, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Begin a backup, lose both primaries while it reads the database, and return how it ended."""
    with ThreadPoolExecutor(1) as pool, psycopg.connect(site.pair.owner_url, autocommit=True) as watching:
        blocking = psycopg.connect(site.pair.owner_url)
        # Nobody reads a tenant until the primary is lost: the dump waits, too.
        blocking.execute("LOCK TABLE tenants_tenant IN ACCESS EXCLUSIVE MODE")
        # Only backups and migrations are the owner's.
        dump = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'hearth_owner' AND wait_event_type = 'Lock'"
        running = pool.submit(site.instance.run, "backup", str(file), *options, timeout_seconds=PATIENCE_SECONDS)
        wait_for(lambda: running.done() or watching.execute(dump).fetchone() != (0,), timeout_seconds=PATIENCE_SECONDS)
        assert not running.done(), running.result()
        site.fail_over()
        with contextlib.suppress(psycopg.OperationalError):
            blocking.close()
        return running.result()


def rows(url: str) -> list[object]:
    """Return what must be the same in a restored database."""
    with psycopg.connect(url) as connection:
        return [connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() for table in TABLES]


def test_an_instance_is_backed_up_restored_and_upgraded_after_its_servers_have_failed_over(
    site: Site, tmp_path: Path
) -> None:
    instance, pair = site.instance, site.pair
    passphrase = ("--passphrase-file", str(tmp_path / "passphrase"))
    (tmp_path / "passphrase").write_text("correct horse battery staple\n")

    interrupted = fail_over_amid_a_backup(site, tmp_path / "before", *passphrase)
    assert interrupted.returncode == 1, interrupted.stdout
    assert "hearth: " in interrupted.stderr
    assert "Traceback" not in interrupted.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["passphrase"], "nothing is left of it"
    wait_for(site.serves, timeout_seconds=PATIENCE_SECONDS)
    done(instance, "backup", str(tmp_path / "after"), *passphrase)
    with pair.superuser(pair.primary) as connection:
        connection.execute(f"CREATE DATABASE {RESTORED} OWNER hearth_owner TEMPLATE template0")
    target = Instance(
        tmp_path / RESTORED,
        instance.port,
        {
            **instance.settings,
            "DATABASE_URL": pair.url("hearth_app", pair.passwords.app, database=RESTORED),
            "DATABASE_OWNER_URL": pair.url("hearth_owner", pair.passwords.owner, database=RESTORED),
        },
    )
    done(target, "restore", str(tmp_path / "after"), *passphrase)
    done(target, "bootstrap", "--engine", "simulated")
    assert rows(target.settings["DATABASE_OWNER_URL"]) == rows(pair.owner_url)

    before = {role["name"]: role["pid"] for role in instance.status()["roles"]}
    for name in ("drain", "gateway", "control"):
        record = instance.folder / "run" / f"{name}.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"fingerprint": "of another version"}))
    up = instance.up_json
    with Client(up["api_base"], [tenant["api_key"] for tenant in up["tenants"]]) as client:
        wait_for(lambda: bool(client.done))
        said = done(instance, "upgrade", "--backup", str(tmp_path / "upgrade"), *passphrase)
        during = len(client.done)
        wait_for(lambda: len(client.done) > during)
    assert client.failed == []
    assert "Every role runs" in said
    after = {role["name"]: role["pid"] for role in instance.status()["roles"]}
    assert {name for name in before if before[name] != after[name]} == {"drain", "gateway", "control"}
