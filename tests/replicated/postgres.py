"""Two real PostgreSQL servers on loopback ports: a primary, and a standby that streams from it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psycopg

from hearth.embedded import roles
from hearth.embedded.account import ServiceAccount, service_account
from hearth.embedded.postgres import binary
from hearth.secrets import DatabasePasswords
from tests.ports import free_ports
from workers.processes import ProcessIdentity, kill_session, launch

PATIENCE_SECONDS = 60.0
SUPERUSER = "hearth_super"
OPTIONS = "&connect_timeout=3"
SETTINGS = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=200",
    "fsync=off",
    "wal_keep_size=256MB",
    "timezone=UTC",
)


@dataclass(slots=True)
class PostgresPair:
    """Both servers. ``primary`` is the index of the one that accepts writes."""

    folder: Path
    account: ServiceAccount
    passwords: DatabasePasswords
    ports: tuple[int, int]
    primary: int = 0
    _servers: dict[int, ProcessIdentity] = field(default_factory=dict)

    def url(self, user: str, password: str, *, database: str = "hearth", only: int | None = None) -> str:
        """Return the address of both servers, or of ``only`` one."""
        ports = self.ports if only is None else (self.ports[only],)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        target = "" if only is not None else "&target_session_attrs=read-write"
        return f"postgresql://{user}:{quote(password)}@{hosts}/{database}?application_name=test{target}{OPTIONS}"

    @property
    def owner_url(self) -> str:
        """Return the address of the database as the role that owns the schema."""
        return self.url("hearth_owner", self.passwords.owner)

    @property
    def app_url(self) -> str:
        """Return the address of the database as role hearth_app."""
        return self.url("hearth_app", self.passwords.app)

    def superuser(self, server: int) -> psycopg.Connection[tuple[object, ...]]:
        """Connect to one server."""
        url = self.url(SUPERUSER, self.passwords.superuser, database="postgres", only=server)
        return psycopg.connect(url, autocommit=True)

    def kill(self, server: int) -> None:
        """Kill a server and its backends."""
        kill_session(self._servers.pop(server), timeout_seconds=PATIENCE_SECONDS)

    def pause(self, server: int, number: signal.Signals = signal.SIGSTOP) -> None:
        """Freeze a server's main process, or with SIGCONT let it go on."""
        os.kill(self._servers[server].pid, number)

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.kill(self.primary)
        self.promote()

    def promote(self) -> None:
        """Make the standby the primary; return when it accepts writes."""
        self.primary = 1 - self.primary
        with self.superuser(self.primary) as connection:
            connection.execute("SELECT pg_promote(true, 60)")
            # It has a copy of the former primary's setting, and no standby that it could wait for.
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            connection.execute("SELECT pg_reload_conf()")

    def rebuild_standby(self) -> None:
        """Copy the primary to the other place, and start it as its standby."""
        standby = 1 - self.primary
        if standby in self._servers:
            self.kill(standby)
        shutil.rmtree(self._cluster(standby), ignore_errors=True)
        source = f"host=127.0.0.1 port={self.ports[self.primary]} user={SUPERUSER} application_name=standby"
        self._run(
            binary("pg_basebackup"), "-D", self._cluster(standby), "-d", source, "-R", "-X", "stream", "-c", "fast"
        )
        self.start(standby)

    def synchronous(self, names: str) -> None:
        """Set synchronous_standby_names of the primary; return when it is in force, and the standby streams."""
        with self.superuser(self.primary) as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            connection.execute("SELECT pg_reload_conf()")
            state = "sync" if names else "async"
            wanted = f"SELECT sync_state = '{state}' AND state = 'streaming' FROM pg_stat_replication"
            _wait(lambda: connection.execute(wanted).fetchone() == (True,))

    def read_only(self, server: int, value: str) -> None:
        """Make a server refuse writes, or accept them again, without ending its connections."""
        with self.superuser(server) as connection:
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            connection.execute("SELECT pg_reload_conf()")

    def create(self) -> None:
        """Make the first cluster with Hearth's roles, and the second one from it."""
        password = self.folder / "password"
        password.write_text(self.passwords.superuser)
        self.account.give(password)
        self._run(
            *(binary("initdb"), "-D", self._cluster(0), f"--username={SUPERUSER}", f"--pwfile={password}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"),
        )
        self.start(0)
        roles.ensure(self.url(SUPERUSER, self.passwords.superuser, database="postgres", only=0), self.passwords)
        self.rebuild_standby()

    def start(self, server: int) -> None:
        """Start a server; return when it accepts connections."""
        settings = (*SETTINGS, f"port={self.ports[server]}")
        options = [part for setting in settings for part in ("-c", setting)]
        (self._cluster(server) / "postmaster.pid").unlink(missing_ok=True)
        self._servers[server] = launch(
            self.account.command(binary("postgres"), "-D", self._cluster(server), *options),
            log_path=self.folder / f"postgres-{server}.log",
            environment=os.environ,
        )
        _wait(lambda: self._accepts(server))

    def close(self) -> None:
        """Kill both."""
        for server in tuple(self._servers):
            self.pause(server, signal.SIGCONT)
            self.kill(server)

    def _accepts(self, server: int) -> bool:
        try:
            self.superuser(server).close()
        except psycopg.OperationalError:
            return False
        return True

    def _cluster(self, server: int) -> Path:
        return self.folder / f"cluster-{server}"

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            self.account.command(*command),
            env=os.environ | {"PGPASSWORD": self.passwords.superuser},
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def running(passwords: DatabasePasswords) -> Iterator[PostgresPair]:
    """Run both during the block."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-pair-"))
    folder.chmod(0o711)
    account = service_account(must_enter=(folder, binary("postgres").parent))
    account.give(folder)
    first = free_ports(2)
    pair = PostgresPair(folder=folder, account=account, passwords=passwords, ports=(first, first + 1))
    try:
        pair.create()
        yield pair
    finally:
        pair.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)
