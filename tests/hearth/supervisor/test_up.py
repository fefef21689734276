"""The life of a whole instance on the simulated engine: up, twice up, killed, up again, down. Real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import urllib.request
from typing import Any

import pytest

from hearth import process_records
from hearth.paths import agent_sockets_dir, gateway_sockets_dir, sockets_dir
from tests.hearth.instances import Instance, wait_for
from workers.processes import is_running

ROLES = ["drain", "agent", "control", "gateway", "portal", "inference", "background", "beat"]


@pytest.fixture(scope="module")
def instance(life: Instance) -> Instance:
    return life


def test_up_json_says_where_to_go_and_only_to_its_owner(instance: Instance) -> None:
    found = instance.up()
    assert found["api_base"] == f"http://127.0.0.1:{instance.port}/v1"
    assert found["portal_url"] == f"http://127.0.0.1:{instance.port + 1}/portal/"
    assert found["admin"]["username"] == "admin"
    assert [tenant["slug"] for tenant in found["tenants"]] == ["acme", "globex"]
    assert found["engine"] == "simulated"
    assert found["pid"] == instance.supervisor().pid
    assert stat.S_IMODE((instance.folder / "up.json").stat().st_mode) == 0o600


def test_no_other_user_may_read_a_file_of_the_instance(instance: Instance) -> None:
    """Others may only pass the data directory itself, for the users of engines and servers that root starts."""
    instance.up()
    named = (sockets_dir, agent_sockets_dir, gateway_sockets_dir)
    found = {
        str(path): stat.S_IMODE(path.lstat().st_mode)
        for folder in (instance.folder, *(each(instance.folder) for each in named))
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink() and path.exists()
    }
    assert found.pop(str(instance.folder)) in {0o700, 0o711}
    readable = {path: f"{mode:04o}" for path, mode in found.items() if mode & 0o077}
    # with a user of their own for engines, their group may enter the folder of the agent's sockets
    readable = {
        path: mode
        for path, mode in readable.items()
        if (path, mode) != (str(agent_sockets_dir(instance.folder)), "1770")
    }
    assert readable == {}


def test_the_months_of_usage_are_there_and_the_owner_finds_none_missing(instance: Instance) -> None:
    found = instance.run("manage", "ensure_partitions")
    assert (found.returncode, found.stdout) == (0, "")


def test_the_printed_curl_works_when_pasted(instance: Instance) -> None:
    instance.up()
    printed = instance.run("up").stdout
    command = printed[printed.index("curl -s") :].strip()
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_a_second_up_says_that_it_runs_and_prints_the_same(instance: Instance) -> None:
    first = instance.up()
    for arguments in (("up",), ("up", "--detach")):
        done = instance.run(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Already running on")
        assert first["tenants"][0]["api_key"] in done.stdout
    assert instance.up_json == first


def test_an_upgrade_with_other_settings_or_no_word_on_a_backup_is_refused(instance: Instance) -> None:
    instance.up()
    assert instance.run("upgrade").returncode == 2
    refused = Instance(instance.folder, instance.port + 1).run("upgrade", "--no-backup")
    assert (refused.returncode, "other settings" in refused.stderr) == (1, True)


def test_placeholders_get_warm_afterwards_and_are_shown(instance: Instance) -> None:
    instance.up()
    wait_for(lambda: [found["state"] for found in instance.status()["placeholders"]] == ["warm"])
    log = instance.folder / "logs" / "supervisor.log"
    wait_for(lambda: "Warm placeholders: " in log.read_text())
    assert "placeholder" in instance.run("status").stdout


def test_status_names_every_process_and_no_secret(instance: Instance) -> None:
    up = instance.up()
    found = instance.status()
    assert found["state"] == "up"
    assert [role["name"] for role in found["roles"]] == ROLES
    assert {role["state"] for role in found["roles"]} == {"running"}
    ports = sorted(int(role["vitals_url"].removeprefix("http://127.0.0.1:")) for role in found["roles"])
    assert ports == list(range(instance.port + 2, instance.port + 10))
    assert [(server["name"], server["state"]) for server in found["servers"]] == [
        ("postgres", "running"),
        ("redis", "running"),
    ]
    assert [replica["state"] for replica in found["replicas"]] == ["ready", "ready"]
    assert found["wal_backlog_bytes"] is not None
    assert found["wal_lag_seconds"] is not None
    assert 0 < found["wal_disk_bytes"] < found["wal_max_bytes"] == 8 << 30
    text = json.dumps(found)
    secrets = [up["admin"]["password"], *(tenant["api_key"] for tenant in up["tenants"])]
    assert not [secret for secret in secrets if secret in text]


@pytest.mark.long
def test_a_role_that_is_killed_comes_back(instance: Instance) -> None:
    instance.up()
    before = _role(instance, "gateway")
    os.kill(before["pid"], signal.SIGKILL)
    wait_for(lambda: _role(instance, "gateway")["state"] == "running" and _role(instance, "gateway")["restarts"] == 1)
    wait_for(lambda: _answers(instance))
    assert _role(instance, "gateway")["pid"] != before["pid"]


@pytest.mark.long
def test_postgres_that_is_killed_comes_back_and_answers_go_on(instance: Instance) -> None:
    instance.up()
    before = next(server["pid"] for server in instance.status()["servers"] if server["name"] == "postgres")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: instance.status()["state"] == "up")
    assert _answers(instance)


@pytest.mark.long
def test_after_a_killed_supervisor_the_next_up_keeps_what_is_healthy_and_answers_go_on(instance: Instance) -> None:
    first = instance.up()
    engines = instance.engines()
    before = {role["name"]: role["pid"] for role in instance.status()["roles"]}
    supervisor = instance.supervisor()
    os.kill(supervisor.pid, signal.SIGKILL)
    assert process_records.wait_until_gone(supervisor, timeout_seconds=5)

    os.kill(before["inference"], signal.SIGKILL)  # gone
    os.kill(before["beat"], signal.SIGSTOP)  # runs, and is not alive
    record = instance.folder / "run" / "portal.json"  # of another version
    record.write_text(json.dumps(json.loads(record.read_text()) | {"fingerprint": "other"}))

    answers: list[bool] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            answers.append(_answers(instance, first))

    client = threading.Thread(target=ask)
    client.start()
    try:
        second = instance.up()
    finally:
        done.set()
        client.join()
    assert answers
    assert all(answers)
    assert second["tenants"] == first["tenants"]
    assert second["admin"] == first["admin"]
    assert second["pid"] != first["pid"]
    after = {role["name"]: role["pid"] for role in instance.status()["roles"]}
    assert {name for name in before if before[name] != after[name]} == {"inference", "beat", "portal"}
    assert set(instance.engines()) >= set(engines)

    os.kill(after["gateway"], signal.SIGKILL)  # an adopted role is kept alive like any other
    wait_for(lambda: _role(instance, "gateway")["pid"] != after["gateway"])
    wait_for(lambda: _answers(instance))


@pytest.mark.long
def test_after_the_loss_of_every_process_the_next_up_recovers(instance: Instance) -> None:
    first = instance.up()
    engines = instance.engines()
    roles = [role["pid"] for role in instance.status()["roles"]]
    supervisor = instance.supervisor()
    os.kill(supervisor.pid, signal.SIGKILL)
    for pid in (*roles, *(engine.pid for engine in engines)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert process_records.wait_until_gone(supervisor, timeout_seconds=5)
    assert instance.up()["tenants"] == first["tenants"]
    assert not [engine for engine in engines if is_running(engine)]
    assert not {role["pid"] for role in instance.status()["roles"]} & set(roles)
    assert _answers(instance)


@pytest.mark.long
def test_down_leaves_nothing_but_the_data(instance: Instance) -> None:
    """That the next start finds everything again is shown above, after the loss of every process."""
    instance.up()
    engines = instance.engines()
    assert instance.run("down").returncode == 0
    assert instance.leftovers() == []
    assert not [engine for engine in engines if is_running(engine)]
    assert not (instance.folder / "up.json").exists()
    assert instance.status()["state"] == "down"
    assert (instance.folder / "secrets.json").exists()
    assert (instance.folder / "postgres" / "cluster" / "PG_VERSION").exists()


@pytest.mark.long
def test_down_clears_what_a_killed_supervisor_left(instance: Instance) -> None:
    instance.up()
    engines = instance.engines()
    os.kill(instance.supervisor().pid, signal.SIGKILL)
    assert instance.run("down").stdout == "Stopped.\n"
    assert instance.leftovers() == []
    assert not [engine for engine in engines if is_running(engine)]
    assert instance.run("down").stdout.startswith("Nothing runs on")


@pytest.mark.long
def test_ctrl_c_in_the_foreground_stops_everything(instance: Instance) -> None:
    instance.run("down")
    output = instance.folder / "foreground.txt"
    with output.open("w") as file:
        up = subprocess.Popen(
            [sys.executable, "-m", "hearth.cli", "up"], env=instance.environment, stdout=file, stderr=file
        )
        try:
            wait_for(lambda: (instance.folder / "up.json").exists() or up.poll() is not None)
            engines = instance.engines()
            up.send_signal(signal.SIGINT)
            assert up.wait(timeout=60) == 0, output.read_text()
        finally:
            up.kill()
    assert instance.leftovers() == []
    assert len(engines) in (2, 3)  # nobody waits for the placeholder, which may be there already
    assert not [engine for engine in engines if is_running(engine)]
    assert "Ctrl-C stops everything" in output.read_text()


def _role(instance: Instance, name: str) -> dict[str, Any]:
    record = next(role for role in instance.status()["roles"] if role["name"] == name)
    assert isinstance(record, dict)
    return record


def _answers(instance: Instance, up: dict[str, Any] | None = None) -> bool:
    """Return whether the gateway answers; ``up`` is the content of up.json where there is none now."""
    up = up or instance.up_json
    key = up["tenants"][0]["api_key"]
    asked = urllib.request.Request(up["api_base"] + "/models", headers={"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return bool(json.load(answer)["data"])
    except OSError:
        return False
