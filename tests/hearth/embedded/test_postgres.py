"""The embedded PostgreSQL: real processes, in a folder of their own."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from hearth import secrets
from hearth.embedded.account import prepare_sockets_dir, service_account
from hearth.embedded.errors import ServerFailed, SocketsUnsafe
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import RedisServer
from hearth.paths import sockets_dir
from hearth.process_records import wait_until_gone
from workers.processes import is_running

NOBODY = 65534


def _server(instance_dir: Path) -> PostgresServer:
    return PostgresServer(
        data_dir=instance_dir / "postgres",
        sockets_dir=sockets_dir(instance_dir),
        log_path=instance_dir / "postgres.log",
        passwords=secrets.load_or_create(instance_dir).database_passwords,
        durable=False,
    )


@pytest.fixture
def server(instance_dir: Path) -> Iterator[PostgresServer]:
    """A server to start, kill and damage."""
    postgres = _server(instance_dir)
    yield postgres
    postgres.stop()


@pytest.fixture(scope="module")
def running(shared_instance_dir: Path) -> Iterator[PostgresServer]:
    """A started server to look at."""
    postgres = _server(shared_instance_dir)
    postgres.start()
    yield postgres
    postgres.stop()


def test_it_keeps_its_data_over_a_restart(server: PostgresServer) -> None:
    urls = server.start()
    with psycopg.connect(urls.owner) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    server.stop()
    assert server.process() is None
    assert server.start() == urls
    with psycopg.connect(urls.app) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_second_start_adopts_the_running_server(server: PostgresServer) -> None:
    server.start()
    first = server.process()
    server.start()
    assert first is not None
    assert server.process() == first


def test_it_recovers_from_kill_minus_nine(server: PostgresServer) -> None:
    urls = server.start()
    with psycopg.connect(urls.owner) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    first = server.process()
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    assert wait_until_gone(first, timeout_seconds=5)
    server.start()
    with psycopg.connect(urls.app) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_pid_file_that_names_a_stranger_does_not_stop_it(server: PostgresServer) -> None:
    server.start()
    server.stop()
    pid_file = server.data_dir / "cluster" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{server.data_dir / 'cluster'}\n0\n5432\n{server.sockets_dir}\n\n")
    assert server.process() is None
    server.start()
    assert server.process() is not None


def test_it_outlives_its_starter_and_the_next_one_adopts_it(server: PostgresServer, instance_dir: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from hearth import secrets
from hearth.embedded.postgres import PostgresServer
PostgresServer(
    data_dir=Path({str(server.data_dir)!r}), sockets_dir=Path({str(server.sockets_dir)!r}),
    log_path=Path({str(server.log_path)!r}), durable=False,
    passwords=secrets.load(Path({str(instance_dir)!r})).database_passwords,
).start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starter = subprocess.run([sys.executable, "-c", program], check=False, env=environment)
    assert starter.returncode == -signal.SIGKILL
    left = server.process()
    assert left is not None
    server.start()
    assert server.process() == left
    server.stop()
    assert not is_running(left)


@pytest.mark.parametrize("user", ["hearth_owner", "hearth_app", "hearth_super"])
def test_no_role_connects_without_its_password(running: PostgresServer, user: str) -> None:
    address = f"postgresql://{user}@/postgres?host={running.sockets_dir}"
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(address)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(address, password="wrong")


def test_the_roles_can_do_what_they_are_for_and_no_more(running: PostgresServer) -> None:
    urls = running.urls
    query = """SELECT rolname, rolsuper, rolbypassrls, rolcreatedb, rolcreaterole, rolcanlogin
               FROM pg_roles WHERE rolname LIKE 'hearth\\_%' ORDER BY rolname"""
    with psycopg.connect(urls.owner) as connection:
        assert connection.execute(query).fetchall() == [
            ("hearth_app", False, False, False, False, True),
            ("hearth_node", False, False, False, False, False),
            # it makes the roles of nodes that join
            ("hearth_owner", False, False, True, True, True),
            ("hearth_super", True, True, True, True, True),
            ("hearth_tenant", False, False, False, False, False),
        ]
        connection.execute("CREATE TABLE guarded (answer int); INSERT INTO guarded VALUES (42)")
    with psycopg.connect(urls.app) as connection:
        connection.execute("UPDATE guarded SET answer = 43")
        connection.execute("SET LOCAL ROLE hearth_tenant")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM guarded")
    with psycopg.connect(urls.app) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("CREATE TABLE mine (answer int)")


def test_it_listens_on_no_network(running: PostgresServer) -> None:
    urls = running.urls
    with psycopg.connect(urls.app) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)


def test_only_its_account_may_enter_the_sockets(running: PostgresServer) -> None:
    assert stat.S_IMODE(running.sockets_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(running.data_dir.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")
def test_another_user_cannot_reach_the_socket(running: PostgresServer) -> None:
    stranger = NOBODY - 1
    seen = subprocess.run(
        ["ls", str(running.sockets_dir)],
        user=stranger,
        group=stranger,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    assert seen.returncode != 0
    assert b"Permission denied" in seen.stderr


def test_a_sockets_folder_made_by_somebody_else_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    trap = tmp_path / "sockets"
    trap.symlink_to(elsewhere)
    before = elsewhere.stat()
    with pytest.raises(SocketsUnsafe):
        prepare_sockets_dir(trap, service_account(must_enter=()))
    assert elsewhere.stat() == before


def test_a_folder_that_is_swapped_for_a_link_meanwhile_changes_nothing_elsewhere(tmp_path: Path) -> None:
    elsewhere, sockets, aside = (tmp_path / name for name in ("elsewhere", "sockets", "aside"))
    elsewhere.mkdir(mode=0o755)
    sockets.mkdir()
    before, over = elsewhere.stat(), threading.Event()

    def swap() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                sockets.rename(aside)
                sockets.symlink_to(elsewhere)
            with contextlib.suppress(OSError):
                sockets.unlink()
                aside.rename(sockets)

    thread = threading.Thread(target=swap)
    thread.start()
    account = service_account(must_enter=())
    try:
        for _ in range(300):
            with contextlib.suppress(SocketsUnsafe):
                prepare_sockets_dir(sockets, account)
    finally:
        over.set()
        thread.join()
    assert (elsewhere.stat().st_mode, elsewhere.stat().st_uid) == (before.st_mode, before.st_uid)


def test_data_of_another_major_version_is_refused(server: PostgresServer) -> None:
    server.start()
    server.stop()
    (server.data_dir / "cluster" / "PG_VERSION").write_text("17\n")
    with pytest.raises(ServerFailed, match="PostgreSQL 17, the server is 18"):
        server.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_data_and_a_running_server_of_another_user_go_on_as_the_roles_user(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(server.start().owner) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    before = server.process()
    monkeypatch.setenv("HEARTH_USER", "daemon")
    with psycopg.connect(server.start().app) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
    after = server.process()
    assert before is not None and after is not None and not is_running(before)
    assert Path(f"/proc/{after.pid}").stat().st_uid == pwd.getpwnam("daemon").pw_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_both_servers_of_another_user_go_on_as_the_roles_user(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = RedisServer(
        data_dir=server.data_dir.parent / "redis",
        sockets_dir=server.sockets_dir,
        log_path=server.data_dir.parent / "redis.log",
    )
    try:
        server.start()
        redis.start()
        monkeypatch.setenv("HEARTH_USER", "daemon")
        server.start()
        redis.start()
        assert server.answers()
        assert redis.answers()
    finally:
        redis.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can stop processes of another user")
def test_a_server_of_another_user_than_the_roles_is_stopped_in_order(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start()
    monkeypatch.setenv("HEARTH_USER", "daemon")
    server.stop()
    assert server.process() is None
    assert "database system is shut down" in server.log_path.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user needs no help below his own folders")
def test_root_may_keep_the_data_below_a_closed_folder() -> None:
    """As in a checkout below /root: the server's account cannot pass, and gets only the right to."""
    with tempfile.TemporaryDirectory() as closed:
        instance = Path(closed) / "instance"
        instance.mkdir(mode=0o711)
        server = _server(instance)
        try:
            server.start()
            process = server.process()
            assert process is not None
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert "CapEff:\t0000000000000004" in status  # CAP_DAC_READ_SEARCH, capability number 2, alone
        finally:
            server.stop()
            server.sockets_dir.rmdir()
