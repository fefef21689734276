"""`hearth upgrade` of a running instance: the order of its steps, and that requests go on meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth import secrets
from hearth.paths import ROOT
from tests.hearth.clients import Client, chat
from tests.hearth.instances import Instance, instance_of_its_own, wait_for
from tests.journey.instance import request

#: One role whose processes may serve side by side, and one that owns something alone.
OLD = {"drain", "gateway"}


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
def test_secrets_are_rotated_under_requests_and_every_key_goes_on(instance: Instance) -> None:
    up = instance.up()
    before = secrets.load(instance.folder)
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
    for key in (secret, *(tenant["api_key"] for tenant in up["tenants"])):
        assert chat(up["api_base"], key)


def test_an_upgrade_of_nothing_or_with_other_settings_is_refused(instance: Instance) -> None:
    instance.up()
    other = Instance(instance.folder, instance.port + 1)
    refused = other.run("upgrade", "--no-backup")
    assert (refused.returncode, "other settings" in refused.stderr) == (1, True)
    assert instance.run("upgrade").returncode == 2
    assert instance.run("down").returncode == 0
    refused = instance.run("upgrade", "--no-backup")
    assert (refused.returncode, "No instance runs" in refused.stderr) == (1, True)


@pytest.mark.long
def test_the_previous_commit_is_upgraded_to_this_one(tmp_path: Path) -> None:
    """The version before runs from a checkout of its own; the new one takes over its data directory."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    before = tmp_path / "before"
    subprocess.run(["git", "worktree", "add", "--detach", str(before), "HEAD~1"], cwd=ROOT, check=True)
    try:
        with instance_of_its_own("hearth-previous-") as instance:
            path = os.pathsep.join([str(before), str(before / "platform")])
            started = subprocess.run(
                [sys.executable, "-m", "hearth.cli", "up", "--detach", "--engine", "simulated"],
                env=instance.environment | {"PYTHONPATH": path},
                cwd=before,
                check=False,
                capture_output=True,
                text=True,
            )
            assert started.returncode == 0, f"{started.stdout}\n{started.stderr}"
            up = instance.up_json
            environment = Path(f"/proc/{instance.supervisor().pid}/environ").read_bytes()
            assert str(before).encode() in environment
            with Client(up["api_base"], [tenant["api_key"] for tenant in up["tenants"]]) as client:
                wait_for(lambda: bool(client.done))
                done = instance.run("upgrade", "--no-backup", timeout_seconds=300)
                assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
            assert client.failed == []
            assert str(before).encode() not in Path(f"/proc/{instance.supervisor().pid}/environ").read_bytes()
            assert instance.run("upgrade", "--finish").returncode == 0
            assert instance.status()["state"] == "up"
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=ROOT, check=True)
