"""One instance of Hearth: its addresses, folders and servers, and the environment of its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hearth import environment, role_account, secrets
from hearth.embedded.postgres import PostgresServer, PostgresUrls
from hearth.embedded.redis import RedisServer
from hearth.paths import ROOT, sockets_dir
from hearth.secrets import Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance, as the environment describes it. Starts and creates nothing."""

    data_dir: Path
    host: str
    port: int
    #: Where each role serves its health pages, from this port on (``hearth.instance.health_ports``).
    metrics_host: str
    metrics_port: int
    node: str
    #: Empty: the embedded server.
    database_url: str
    database_owner_url: str
    redis_url: str
    gateway_processes: int = 1
    #: Open client connections that each web process accepts.
    connections: int = 8192
    #: Whether a start makes the demo tenants, if they never were.
    demo: bool = True

    @property
    def portal_port(self) -> int:
        return self.port + 1

    @property
    def api_base(self) -> str:
        """Return the address of the inference API for a client on this machine."""
        return f"http://{client_host(self.host)}:{self.port}/v1"

    @property
    def portal_url(self) -> str:
        return f"http://{client_host(self.host)}:{self.portal_port}/portal/"

    @property
    def logs_dir(self) -> Path:
        return self.data_dir / "logs"

    @property
    def records_dir(self) -> Path:
        """Return the folder with one file per process that the supervisor started (``hearth.process_records``)."""
        return self.data_dir / "run"

    @property
    def engines_dir(self) -> Path:
        """Return the folder with one file per engine process, written by the agent."""
        return self.data_dir / "engines"

    @property
    def sockets_dir(self) -> Path:
        return sockets_dir(self.data_dir)

    @property
    def up_path(self) -> Path:
        return self.data_dir / "up.json"

    @property
    def node_path(self) -> Path:
        """Return the file that exists while `hearth node` runs."""
        return self.data_dir / "node.json"

    @property
    def stop_fleet_path(self) -> Path:
        """Return the file with which `hearth down --fleet` asks the supervisor to stop every machine's engines."""
        return self.data_dir / "stop-fleet"

    @property
    def lock_path(self) -> Path:
        return self.data_dir / "lock"

    def log_path(self, name: str) -> Path:
        """Return the log of a role, server or step."""
        return self.logs_dir / f"{name}.log"

    def make_folders(self) -> None:
        """Create the data directory and its folders, private to this user. Idempotent. Raises OSError.

        Started by root, roles and embedded servers may run as another user, who must be able to traverse the data
        directory. What exists keeps its mode.
        """
        missing = [folder for folder in (self.data_dir, *self.data_dir.parents) if not folder.exists()]
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            for folder in missing:
                folder.chmod(0o711)
        written_by_roles = (self.data_dir / name for name in role_account.FOLDERS)
        for folder in (self.logs_dir, self.records_dir, self.engines_dir, *written_by_roles):
            folder.mkdir(mode=0o700, exist_ok=True)

    def postgres(self, found: Secrets) -> PostgresServer | None:
        """Return the embedded PostgreSQL; None when DATABASE_URL is set."""
        if self.database_url:
            return None
        return PostgresServer(
            data_dir=self.data_dir / "postgres",
            sockets_dir=self.sockets_dir,
            log_path=self.log_path("postgres"),
            passwords=found.database_passwords,
        )

    def redis(self) -> RedisServer | None:
        """Return the embedded Redis; None when REDIS_URL is set."""
        if self.redis_url:
            return None
        return RedisServer(
            data_dir=self.data_dir / "redis", sockets_dir=self.sockets_dir, log_path=self.log_path("redis")
        )

    def owner_url(self) -> str:
        """Return the address of the database for the role that may migrate; without one, like :meth:`app_url`."""
        if self.database_url:
            return self.database_owner_url or self.database_url
        urls = self._embedded_urls()
        return urls.owner if urls else ""

    def app_url(self) -> str:
        """Return the address of the database as role hearth_app; empty while there is no database.

        Raises what ``secrets.load`` raises for a file that exists.
        """
        urls = self._embedded_urls()
        return urls.app if urls else self.database_url

    def environment(self, role: str = "all") -> dict[str, str]:
        """Return the whole environment of a process of this instance, as role hearth_app of the database.

        Without the owner's address: only processes that change the schema get it. The checkout is first on the import
        path, before any installed distribution with the name of one of its packages.
        """
        base = {name: value for name, value in os.environ.items() if name != "DATABASE_OWNER_URL"}
        redis = self.redis()
        return base | {
            "HEARTH_CONNECTIONS": str(self.connections),
            "HEARTH_DATA_DIR": str(self.data_dir),
            "HEARTH_HOST": self.host,
            "HEARTH_METRICS_HOST": self.metrics_host,
            "HEARTH_METRICS_PORT": str(self.metrics_port),
            "HEARTH_NODE": self.node,
            "HEARTH_PORT": str(self.port),
            "HEARTH_ROLE": role,
            "DATABASE_URL": self.app_url(),
            "REDIS_URL": self.redis_url if redis is None else redis.url,
            "DJANGO_SETTINGS_MODULE": "hearth.settings",
            "PYTHONPATH": _import_path(os.environ),
        }

    def _embedded_urls(self) -> PostgresUrls | None:
        if self.database_url or not secrets.path_in(self.data_dir).exists():
            return None
        postgres = self.postgres(secrets.load(self.data_dir))
        return postgres.urls if postgres else None


def from_environment() -> Instance:
    """Return the instance that the environment describes. Raises BadSetting."""
    found = environment.read()
    return Instance(
        data_dir=found.data_dir,
        host=found.host,
        port=found.port,
        metrics_host=found.metrics_host,
        metrics_port=found.metrics_port or found.port + 2,
        node=found.node,
        database_url=found.database_url,
        database_owner_url=found.database_owner_url,
        redis_url=found.redis_url,
        gateway_processes=found.gateway_processes,
        connections=found.connections,
        demo=not found.database_url if found.demo is None else found.demo,
    )


def client_host(host: str) -> str:
    """Return the host of a URL for a client: an address that means every interface becomes loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _import_path(variables: Mapping[str, str]) -> str:
    ours = [str(ROOT), str(ROOT / "platform")]
    given = [part for part in variables.get("PYTHONPATH", "").split(os.pathsep) if part and part not in ours]
    return os.pathsep.join([*ours, *given])
