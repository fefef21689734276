"""An instance of Hearth of the benchmark's own, with everything on: the roles that answer and account for requests.

Its data directory is temporary, its PostgreSQL and Redis are the embedded ones, as durable as ``make up`` has them.
No agent runs: the one replica is a row that names the mock upstream.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg

from benchmarks.errors import NotRun
from benchmarks.gateway.load import Address
from benchmarks.gateway.site import Running, Site, free_port
from benchmarks.gateway.upstream import MODEL
from hearth import secrets
from hearth.embedded.errors import EmbeddedServerError
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import RedisServer
from hearth.instance.instance import Instance
from hearth.instance.roles import BY_NAME
from hearth.provisioning import database
from hearth.supervisor import cleanup

DRAIN_TIMEOUT_SECONDS = 90.0
#: A drain that has work brings some more within this time.
DRAIN_LOOK_SECONDS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """What to run as gateway. ``application`` None: the real one, as in production; else another on the same server."""

    name: str = "hearth-gateway"
    #: Whose key is used.
    tenant: str = "full"
    processes: int = 1
    application: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HearthUnderTest:
    """The instance, its gateways on the contender's cores, all on one port, and the drain on the others."""

    instance: Instance
    #: Tenant → key; the gateways' address has that of tenant ``full``.
    keys: Mapping[str, str]
    address: Address
    gateways: tuple[Running, ...]
    drain: Running

    def more(self, site: Site, gateways: Gateways) -> HearthUnderTest:
        """Start other gateways of this instance on a port of their own."""
        address, running = _start_gateways(site, self.instance, self.keys[gateways.tenant], gateways)
        return replace(self, address=address, gateways=running)

    def usage_records(self) -> int:
        """Return how many usage records are in PostgreSQL once the drain has no more to bring."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_SECONDS
        url = self.instance.environment()["DATABASE_URL"]
        count = -1
        with psycopg.connect(url, autocommit=True) as connection:
            while time.monotonic() < deadline:
                before, count = count, _count(connection)
                if count == before:
                    break
                time.sleep(DRAIN_LOOK_SECONDS)
        return count


def command(instance: Instance, application: str | None = None) -> list[str]:
    """Return what starts the gateway, as in production, or another ASGI application on the same server."""
    gateway = BY_NAME["gateway"].command(instance)
    return gateway if application is None else [*gateway, application]


def place(folder: Path) -> Instance:
    """Return an instance on free ports below the run's folder; nothing is started or created."""
    return Instance(
        data_dir=folder / "hearth",
        host="127.0.0.1",
        port=free_port(),
        metrics_host="127.0.0.1",
        metrics_port=free_port(),
        node="bench",
        database_url="",
        database_owner_url="",
        redis_url="",
    )


def start(site: Site, processes: int = 1) -> HearthUnderTest:
    """Start it. Raises NotRun."""
    instance = place(site.folder)
    try:
        _start_servers(site, instance)
        database.migrate(instance)
    except (EmbeddedServerError, database.MigrationFailed) as error:
        raise NotRun("its database could not be prepared", str(error)) from None
    keys = _seed(site, instance)
    drain = site.start("hearth-drain", BY_NAME["drain"].command(instance), instance.environment("drain"))
    gateways = Gateways(processes=processes)
    address, running = _start_gateways(site, instance, keys[gateways.tenant], gateways)
    return HearthUnderTest(instance=instance, keys=keys, address=address, gateways=running, drain=drain)


def stop_servers(folder: Path) -> None:
    """Stop the servers that a killed run left in its folder, and remove their sockets."""
    instance = place(folder)
    if secrets.path_in(instance.data_dir).exists():
        for server in _servers(instance):
            server.stop()
        cleanup.remove_sockets(instance)


def _start_gateways(
    site: Site, instance: Instance, key: str, gateways: Gateways
) -> tuple[Address, tuple[Running, ...]]:
    """Start them on one port, which the kernel shares out between them; each has its own for its vitals."""
    port = free_port()
    running = []
    for number in range(gateways.processes):
        placed = replace(instance, port=port, metrics_port=free_port())
        running.append(
            site.start(
                f"{gateways.name}-{gateways.processes}-{number}",
                command(placed, gateways.application),
                placed.environment("gateway") | dict(gateways.environment),
                cores=site.cores.of(gateways.processes),
            )
        )
    return Address(port=port, api_key=key, model=MODEL), tuple(running)


def _start_servers(site: Site, instance: Instance) -> None:
    instance.make_folders()
    secrets.load_or_create(instance.data_dir)
    site.cleanup.callback(cleanup.remove_sockets, instance)
    for server in _servers(instance):
        site.cleanup.callback(server.stop)
        server.start()


def _servers(instance: Instance) -> tuple[PostgresServer, RedisServer]:
    postgres, redis = instance.postgres(secrets.load(instance.data_dir)), instance.redis()
    assert postgres is not None and redis is not None, "neither has an address of its own"
    return postgres, redis


def _seed(site: Site, instance: Instance) -> dict[str, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.gateway.seed", str(site.upstream_port)],
        env=instance.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise NotRun("its tenant and model could not be created", ran.stderr)
    found: dict[str, str] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def _count(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute("SELECT count(*) FROM billing_usagerecord").fetchone()
    assert row is not None
    return int(row[0])
