"""`hearth upgrade` of a running instance: the order of its steps, and that requests go on meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from hearth import secrets
from hearth.paths import ROOT
from tests.hearth.clients import Client
from tests.hearth.instances import Instance, instance_of_its_own, unstarted, wait_for
from tests.journey.instance import request
from tests.ports import INSTANCE_PORTS, free_ports

#: One role whose processes may serve side by side, and one that owns something alone.
OLD = {"drain", "gateway"}


#: Migrations of a next version, which replaces a column of a table that every gateway and the portal read.
EXPAND, CONTRACT = "9998_expand", "9999_contract"
MIGRATION = """
from django.db import migrations

class Migration(migrations.Migration):
    contracts = {contracts}
    dependencies = [("tenants", "{before}")]
    operations = [migrations.RunSQL("ALTER TABLE tenants_apikey {change}")]
"""


@contextmanager
def checkout(folder: Path, revision: str) -> Iterator[Path]:
    """Yield a checkout of its own; skip the test where the tests run from something else than one."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    subprocess.run(["git", "worktree", "add", "--detach", str(folder), revision], cwd=ROOT, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=ROOT, check=True)


def hearth(tree: Path, instance: Instance, *arguments: str) -> subprocess.Popen[str]:
    """Start a `hearth` command of the version in that checkout."""
    return subprocess.Popen(
        [sys.executable, "-m", "hearth.cli", *arguments],
        env=instance.environment | {"PYTHONPATH": os.pathsep.join([str(tree), str(tree / "platform")])},
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def succeed(command: subprocess.Popen[str]) -> str:
    """Wait until the command succeeds; return what it wrote to standard error."""
    output, errors = command.communicate(timeout=300)
    assert command.returncode == 0, f"{output}\n{errors}"
    return errors


def runs_from(tree: Path, instance: Instance) -> bool:
    return str(tree).encode() in Path(f"/proc/{instance.supervisor().pid}/environ").read_bytes()


def add_migrations(tree: Path) -> None:
    folder = tree / "tenants" / "migrations"
    last = max(path.stem for path in folder.glob("[0-9]*.py"))
    expand = MIGRATION.format(contracts=False, before=last, change="ADD COLUMN note_after integer")
    contract = MIGRATION.format(contracts=True, before=EXPAND, change="DROP COLUMN note_before")
    (folder / f"{EXPAND}.py").write_text(expand)
    (folder / f"{CONTRACT}.py").write_text(contract)


def columns(url: str) -> list[str]:
    """Return the columns that these migrations add and drop."""
    query = "SELECT column_name FROM information_schema.columns WHERE column_name LIKE 'note_%' ORDER BY 1"
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(query).fetchall()]


def state_of(instance: Instance, short_id: str) -> str:
    """Return the state of the replica whose id ends so."""
    with psycopg.connect(unstarted(instance.folder, instance.port).owner_url()) as connection:
        query = "SELECT state FROM workers_replica WHERE right(id::text, 6) = %s"
        return str(connection.execute(query, [short_id]).fetchall()[0][0])


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    with instance_of_its_own("hearth-upgrade-") as found:
        yield found


@pytest.mark.long
def test_roles_of_another_version_are_replaced_one_by_one_under_requests(instance: Instance, tmp_path: Path) -> None:
    up = instance.up()
    before = {role["name"]: role["pid"] for role in instance.status()["roles"]}
    engines = instance.engines()
    for name in OLD:
        record = instance.folder / "run" / f"{name}.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"fingerprint": "of another version"}))
    refused = instance.run("upgrade", "--finish")
    assert (refused.returncode, "did not start with this version" in refused.stderr) == (1, True)
    (tmp_path / "passphrase").write_text("correct horse battery staple\n")

    with Client(up["api_base"], [tenant["api_key"] for tenant in up["tenants"]]) as client:
        wait_for(lambda: bool(client.done))
        backup = ("--backup", str(tmp_path / "before"), "--passphrase-file", str(tmp_path / "passphrase"))
        done = instance.run("upgrade", *backup, timeout_seconds=300)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        during = len(client.done)
        wait_for(lambda: len(client.done) > during)
    assert client.failed == []
    assert during > 1
    steps = ["Backup written", "the version before can still", "Replaced drain", "Replaced gateway", "Every role runs"]
    assert [done.stdout.index(step) for step in steps] == sorted(done.stdout.index(step) for step in steps)
    after = {role["name"]: role["pid"] for role in instance.status()["roles"]}
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == OLD
    assert set(instance.engines()) >= set(engines)
    assert not list((instance.folder / "run").glob("*-old.json"))
    assert instance.run("backup", "--verify", *backup[1:]).returncode == 0
    assert instance.run("upgrade", "--finish").returncode == 0


@pytest.mark.long
def test_secrets_are_rotated_under_requests_and_every_key_and_engine_goes_on(instance: Instance) -> None:
    up = instance.up()
    before = secrets.load(instance.folder)
    engine_key = secrets.fingerprint(before.engine_key)
    engines = instance.engines()
    with Client(up["api_base"], [tenant["api_key"] for tenant in up["tenants"]]) as client:
        wait_for(lambda: bool(client.done))
        done = instance.run("secrets", "rotate", timeout_seconds=300)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        during = len(client.done)
        wait_for(lambda: len(client.done) > during)
    assert client.failed == []
    after = secrets.load(instance.folder)
    assert after.key_pepper.current == before.key_pepper.current + 1
    assert secrets.is_rotated_from(after, before)
    assert set(instance.engines()) >= set(engines)
    assert instance.up_json["tenants"] == up["tenants"]

    portal = up["portal_url"].removesuffix("/portal/") + "/api/v1"
    operator = request(portal + "/tokens", "", {**up["admin"], "name": "rotation"}).json()["secret"]
    issued = request(portal + "/tenants/acme/keys", operator, {"name": "of the new pepper", "project": "default"})
    assert issued.status == 201, issued
    secret = issued.json()["secret"]
    wait_for(lambda: request(up["api_base"] + "/models", secret).status == 200)
    finished = instance.run("secrets", "rotate", "--finish", timeout_seconds=300)
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    kept = secrets.load(instance.folder)
    assert (kept.key_pepper, kept.django_secret_key_fallbacks) == (after.key_pepper, ())  # the demo's keys need both
    assert kept.engine_keys == after.engine_keys
    assert f"Engine key {engine_key} is in use:" in finished.stdout
    with Client(up["api_base"], [secret, *(tenant["api_key"] for tenant in up["tenants"])]) as client:
        drained = re.findall(r"celery -A hearth (fleet drain \w+)", finished.stdout)
        for drain in drained:
            command = [sys.executable, "-m", "celery", "-A", "hearth", *drain.split()]
            subprocess.run(command, env=instance.environment, check=True, timeout=400)
        wait_for(lambda: {"stopped"} == {state_of(instance, drain[-6:]) for drain in drained})
        finished = instance.run("secrets", "rotate", "--finish", timeout_seconds=300)
        assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
        during = len(client.done)
        wait_for(lambda: len(client.done) > during)
    assert client.failed == []
    assert list(secrets.load(instance.folder).engine_keys.values()) == [after.engine_key]


def test_an_upgrade_of_nothing_is_refused(instance_dir: Path) -> None:
    nothing = Instance(instance_dir, free_ports(INSTANCE_PORTS))
    refused = nothing.run("upgrade", "--no-backup")
    assert (refused.returncode, "No instance runs" in refused.stderr) == (1, True)


@pytest.mark.long
def test_the_previous_commit_is_upgraded_to_this_one(tmp_path: Path) -> None:
    """The version before runs from a checkout of its own; the new one takes over its data directory."""
    with checkout(tmp_path / "before", "HEAD~1") as before, instance_of_its_own("hearth-previous-") as instance:
        succeed(hearth(before, instance, "up", "--detach", "--engine", "simulated"))
        up = instance.up_json
        assert runs_from(before, instance)
        with Client(up["api_base"], [tenant["api_key"] for tenant in up["tenants"]]) as client:
            wait_for(lambda: bool(client.done))
            upgraded = instance.run("upgrade", "--no-backup", timeout_seconds=300)
            assert upgraded.returncode == 0, f"{upgraded.stdout}\n{upgraded.stderr}"
        assert client.failed == []
        assert not runs_from(before, instance)
        assert instance.run("upgrade", "--finish").returncode == 0
        assert instance.status()["state"] == "up"


@pytest.mark.long
def test_a_version_with_another_schema_takes_over_beside_a_long_reader(tmp_path: Path) -> None:
    """The next version expands a table that somebody reads; what it removes stays until the end."""
    with checkout(tmp_path / "next", "HEAD") as after, instance_of_its_own("hearth-next-") as instance:
        add_migrations(after)
        up = instance.up()
        owner = unstarted(instance.folder, instance.port).owner_url()
        with psycopg.connect(owner) as connection:
            connection.execute("ALTER TABLE tenants_apikey ADD COLUMN note_before integer")
        reader = psycopg.connect(owner)
        reader.execute("SELECT FROM tenants_apikey")  # its transaction stays open
        log = instance.folder / "logs" / "migrate.log"
        with Client(up["api_base"], [tenant["api_key"] for tenant in up["tenants"]]) as client:
            wait_for(lambda: bool(client.done))
            upgrade = hearth(after, instance, "upgrade", "--no-backup")
            try:
                wait_for(lambda: "a table is in use, trying again" in log.read_text() or upgrade.poll() is not None)
                waited = len(client.done)
                wait_for(lambda: len(client.done) > waited)  # what waits for the reader holds nobody else up
                assert columns(owner) == ["note_before"]
            finally:
                reader.close()
            assert "a table is in use, trying again (try 1 of 20): ALTER TABLE tenants_apikey" in succeed(upgrade)
            during = len(client.done)
            wait_for(lambda: len(client.done) > during)
            assert columns(owner) == ["note_after", "note_before"]
            assert runs_from(after, instance)
            succeed(hearth(after, instance, "upgrade", "--finish"))
            assert columns(owner) == ["note_after"]
            refused = instance.run("upgrade", "--no-backup")
            assert (refused.returncode, "migration tenants.9999_contract" in refused.stderr) == (1, True)
            finished = len(client.done)
            wait_for(lambda: len(client.done) > finished)
        assert client.failed == []
        assert runs_from(after, instance)
        assert instance.status()["state"] == "up"
