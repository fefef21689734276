"""What `hearth check --deploy` finds: in settings, folders and secrets as they are made, and at a port that answers."""

from __future__ import annotations

import getpass
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from hearth import environment, secrets
from hearth.checks import deployment, engine_network
from hearth.instance import instance, start_options
from hearth.process_records import write_record
from tenants.ids import ReplicaId, new_id
from workers.agent.processes.process_records import EngineRecord, ProcessRecords
from workers.processes import ProcessIdentity, identify

SAFE = {
    "DATABASE_URL": "postgresql://hearth_app:0123456789abcdef0123@127.0.0.1:1/hearth",
    "DATABASE_OWNER_URL": "postgresql://hearth_owner:0123456789abcdef0123@db.example/hearth",
    "REDIS_URL": "rediss://:0123456789abcdef0123@redis.example:6379/0",
    "HEARTH_TLS_PROXY": "1",
    "HEARTH_TRUSTED_PROXIES": "10.0.0.5/32",
    "HEARTH_ALLOWED_HOSTS": "hearth.example.com",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with its folders and secrets, and settings with which nothing is found."""
    for name in environment.variables():
        monkeypatch.delenv(name, raising=False)
    for name, value in SAFE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HEARTH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(engine_network, "OUTSIDE", ("127.0.0.1", 1))  # tests connect to nothing outside
    found = instance.from_environment()
    found.make_folders()
    secrets.load_or_create(found.data_dir)
    return found.data_dir


def problems() -> list[str]:
    """Return what is found but for the disk, which is whatever the tests' machine has for temporary files."""
    found = deployment.findings(instance.from_environment())
    assert all(each.remedy for each in found)
    return [each.problem for each in found if "usage log" not in each.problem]


def test_a_safe_deployment_has_no_findings(folder: Path) -> None:
    assert problems() == []


def test_a_node_with_more_than_the_rights_of_a_node_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_NODE", "second")
    instance.from_environment().node_path.write_text("{}")
    assert problems() == [
        "Whoever steals this node has every tenant's data: DATABASE_URL is of 'hearth_app'.",
        "Whoever steals this node may change limits and read stored responses: REDIS_URL is not of the user "
        "hearth-node.",
    ]
    for name, user in (("DATABASE_URL", "hearth_node_second"), ("REDIS_URL", "hearth-node")):
        monkeypatch.setenv(name, SAFE[name].replace("hearth_app:", ":").replace("//:", f"//{user}:"))
    assert problems() == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DATABASE_URL", "", "embedded PostgreSQL"),
        ("DATABASE_URL", SAFE["DATABASE_OWNER_URL"], "DATABASE_URL is of the owner's role"),
        ("DATABASE_URL", "postgresql://hearth_app:hearth@db.example/hearth", "DATABASE_URL is of 6 characters"),
        ("REDIS_URL", "", "embedded Redis"),
        ("REDIS_URL", "redis://redis.example:6379/0", "REDIS_URL is missing"),
        ("REDIS_LIMITS_URL", "redis://:short@limits.example/0", "REDIS_LIMITS_URL is of 5 characters"),
        ("HEARTH_DEBUG", "1", "HEARTH_DEBUG=1"),
        ("HEARTH_DEMO", "1", "HEARTH_DEMO=1 makes demo tenants"),
        ("HEARTH_TLS_PROXY", "0", "travel in clear"),
        ("HEARTH_TRUSTED_PROXIES", "", "seems to come from the proxy"),
        ("HEARTH_ALLOWED_HOSTS", "hearth.example.com,*", "anybody's host name"),
        ("HEARTH_ALLOWED_HOSTS", "localhost,127.0.0.1", "loopback names only"),
        ("HEARTH_METRICS_HOST", "0.0.0.0", "Metrics"),
        ("HEARTH_NODE_ADDRESS", "0.0.0.0", "Engines would listen on"),
        ("HEARTH_NODE_ADDRESS", "8.8.8.8", "Engines would listen on"),
    ],
)
def test_a_setting_that_lets_strangers_in_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    found = problems()
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("name", "value"), [("REDIS_URL", "unix:///run/redis.sock"), ("HEARTH_NODE_ADDRESS", "10.0.0.2")]
)
def test_a_private_address_is_not_found(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert problems() == []


def test_secrets_that_are_missing_exposed_or_plain_are_found(folder: Path) -> None:
    path = secrets.path_in(folder)
    document = json.loads(path.read_text())
    path.chmod(0o644)
    assert [each for each in problems() if "0644" in each] == problems() != []
    path.chmod(0o600)
    path.write_text(json.dumps(document | {"admin_password": "hearth", "django_secret_key": "django-insecure"}))
    (plain,) = problems()
    assert plain.endswith("django_secret_key, admin_password.")
    path.unlink()
    (missing,) = problems()
    assert missing == f"There are no secrets in {folder}."


def test_the_simulated_engine_is_found(folder: Path) -> None:
    (folder / start_options.FILE_NAME).write_text(json.dumps({"engine": "simulated"}))
    (found,) = problems()
    assert "makes its responses up" in found


def test_folders_that_others_may_read_are_found(folder: Path) -> None:
    (folder / "wal").chmod(0o750)
    folder.chmod(0o755)
    assert problems() == [
        f"Other users may read {folder} (mode 0755).",
        f"Other users may read {folder / 'wal'} (mode 0750).",
    ]


def test_keys_of_demo_tenants_are_found(folder: Path) -> None:
    (folder / "demo-keys.json").write_text("{}")
    assert problems() == [
        f"{folder / 'demo-keys.json'} has keys of demo tenants, which may do everything there and never expire."
    ]


def test_a_usage_log_in_memory_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_DATA_DIR", "/dev/shm/hearth-that-is-not-there")
    found = [each.problem for each in deployment.findings(instance.from_environment())]
    assert any("lies in memory (tmpfs)" in each for each in found)


@pytest.mark.parametrize(
    ("statuses", "open_paths"),
    [
        ({}, "/v1/models, /invocations, /tokenize, /metrics"),
        ({"/v1/models": 401}, "/invocations, /tokenize, /metrics"),
        ({"/v1/models": 401, "/invocations": 400, "/tokenize": 401, "/metrics": 401}, "/invocations"),
        ({"/v1/models": 401, "/invocations": 401, "/tokenize": 401, "/metrics": 401}, ""),
    ],
)
def test_an_engine_that_answers_without_a_key_is_found(
    folder: Path, statuses: Mapping[str, int], open_paths: str
) -> None:
    me = identify(os.getpid())
    assert me is not None
    with answering(statuses) as port:
        record = EngineRecord(
            replica_id=ReplicaId(UUID(str(new_id()))),
            node="test",
            fence=1,
            generation=1,
            pid=me.pid,
            start_ticks=me.start_ticks,
            boot_id="",
            port=port,
            devices=(),
            begun_at=0.0,
        )
        ProcessRecords(folder / "engines", "test").write(record)
        owner = f"Engines run as user {getpass.getuser()}, who can read every secret here."
        said = f"The engine of replica {record.replica_id} answers {open_paths} without a key at 127.0.0.1:{port}."
        assert problems() == ([said, owner] if open_paths else [owner])


@pytest.mark.parametrize("user", [getpass.getuser(), "nobody"])
def test_engines_that_reach_servers_or_the_internet_are_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    if user == "nobody" and os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    monkeypatch.setenv("HEARTH_ENGINE_USER", user)
    with running_as("nobody" if os.geteuid() == 0 else user) as process, answering({}) as port:
        said = "reach DATABASE_URL, the Internet."
        monkeypatch.setenv("DATABASE_URL", SAFE["DATABASE_URL"].replace(":1/", f":{port}/"))
        monkeypatch.setattr(engine_network, "OUTSIDE", ("127.0.0.1", port))
        assert not [each for each in problems() if "reach" in each], "no engine runs here"
        write_record(folder / "engines/0.json", process)
        assert [each.endswith(said) for each in problems() if "reach" in each] == [True]
        monkeypatch.setenv("DATABASE_URL", SAFE["DATABASE_URL"])
        assert [each.endswith("reach the Internet.") for each in problems() if "reach" in each] == [True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
@pytest.mark.parametrize(("user", "is_found"), [("root", True), ("nobody", False)])
def test_processes_with_more_rights_than_they_need_are_found(folder: Path, user: str, is_found: bool) -> None:
    with running_as(user) as process:
        for record in ("run/gateway.json", "run/agent.json", "engines/0.json"):
            write_record(folder / record, process)
        assert problems() == (
            ["Root runs gateway.", "Engines run as user root, who can read every secret here."] if is_found else []
        )


def test_the_command_prints_findings_with_remedies_and_fails(folder: Path) -> None:
    command = [sys.executable, "-m", "hearth.cli", "check", "--deploy"]
    variables = os.environ | {"HEARTH_DEBUG": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "HEARTH_DEBUG=1 shows secrets to any client that causes an error.\n   Unset it." in done.stdout
    assert "0123456789abcdef0123" not in done.stdout + done.stderr


def test_behind_a_proxy_with_tls_cookies_travel_over_tls_only(folder: Path) -> None:
    asked = "[settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE, settings.SECURE_HSTS_SECONDS > 0]"
    code = f"from django.conf import settings; print({asked}, settings.SECURE_PROXY_SSL_HEADER)"
    variables = os.environ | {"DJANGO_SETTINGS_MODULE": "hearth.settings"}
    for value, said in (
        ("1", "[True, True, True] ('HTTP_X_FORWARDED_PROTO', 'https')"),
        ("0", "[False, False, False] None"),
    ):
        with_it = variables | {"HEARTH_TLS_PROXY": value}
        done = subprocess.run([sys.executable, "-c", code], env=with_it, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == said, done.stderr


@contextmanager
def running_as(user: str) -> Iterator[ProcessIdentity]:
    """Run a process as a user, and yield it."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=user) as process:
        try:
            found = identify(process.pid)
            assert found is not None
            yield found
        finally:
            process.kill()


@contextmanager
def answering(statuses: Mapping[str, int]) -> Iterator[int]:
    """Serve each path with its status, else 200, and yield the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.get(self.path, 200))
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    # A thread for each connection: libpq may leave one open that says nothing more, and `shutdown` would wait for it.
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
