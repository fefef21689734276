"""PostgreSQL and Redis as the images of the compose file hand them over, from the embedded servers' programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from hearth import secrets
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.postgres import binary as postgres_binary
from hearth.embedded.redis import binary as redis_binary
from hearth.paths import ROOT, sockets_dir
from tests.docker.files import COMPOSE, compose, environment, interpolate
from tests.journey.instance import wait_for
from tests.ports import free_ports

PASSWORDS = {
    "POSTGRES_PASSWORD": "p",
    "HEARTH_OWNER_PASSWORD": "owner's",
    "HEARTH_APP_PASSWORD": "app'$",
    "HEARTH_REDIS_PASSWORD": "r",
    "HEARTH_NODE_REDIS_PASSWORD": "n",
}
#: Of nodes' roles in PostgreSQL.
NODE_PASSWORD = "only-for-tests"


def start(folder: Path, stack: ExitStack) -> dict[str, str]:
    """Start both servers for this machine; return their addresses by variable."""
    return postgres(folder, stack) | {"REDIS_URL": redis(folder, stack)}


def postgres(
    folder: Path, stack: ExitStack, *, sockets: Path | None = None, nodes: Sequence[str] = ()
) -> dict[str, str]:
    """Start PostgreSQL with the image's roles and those of ``nodes`` (NODE_PASSWORD); return addresses.

    With ``sockets``, every user may connect to the socket in that folder.
    """
    folder.mkdir(mode=0o711)
    made = secrets.load_or_create(folder).database_passwords
    everybody, sockets = sockets is not None, sockets or sockets_dir(folder)
    stack.callback(shutil.rmtree, sockets, ignore_errors=True)
    server = PostgresServer(
        data_dir=folder / "postgres",
        sockets_dir=sockets,
        log_path=folder / "postgres.log",
        passwords=made,
        durable=False,
    )
    stack.callback(server.stop)
    server.start()
    if everybody:
        sockets.chmod(0o711)
        for each in sockets.iterdir():
            if each.is_socket():
                each.chmod(0o777)
    host = quote(str(sockets), safe="")
    superuser = f"postgresql://hearth_super:{quote(made.superuser)}@/template1?host={host}"
    with psycopg.connect(superuser, autocommit=True) as connection:
        for statement in (
            "DROP DATABASE hearth",
            "DROP OWNED BY hearth_owner",
            "DROP OWNED BY hearth_app",
            "DROP ROLE hearth_app, hearth_owner, hearth_tenant, hearth_node",
        ):
            connection.execute(statement)
    client = {"PGHOST": str(sockets), "PGPASSWORD": made.superuser, "POSTGRES_USER": "hearth_super"}
    path = os.pathsep.join([str(postgres_binary("psql").parent), os.environ["PATH"]])
    subprocess.run(
        ["bash", ROOT / "docker" / "postgres" / "roles.sh"],
        env=os.environ | PASSWORDS | client | {"PATH": path},
        check=True,
        cwd="/",
    )
    with psycopg.connect(superuser, autocommit=True) as connection:
        for node in nodes:
            role = sql.Identifier(f"hearth_node_{node}")
            made_role = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE hearth_node")
            connection.execute(made_role.format(role, sql.Literal(NODE_PASSWORD)))
    return {
        name: f"postgresql://{user}:{quote(PASSWORDS[password])}@/hearth?host={host}"
        for name, user, password in (
            ("DATABASE_URL", "hearth_app", "HEARTH_APP_PASSWORD"),
            ("DATABASE_OWNER_URL", "hearth_owner", "HEARTH_OWNER_PASSWORD"),
        )
    }


def redis(folder: Path, stack: ExitStack, *, prefix: Sequence[str] = (), host: str = "127.0.0.1") -> str:
    """Start Redis by the compose file's own command, on a port of its own, and wait for its own health check.

    ``prefix`` begins each command line, to run it in another network. Returns its address.
    """
    port = free_ports(1)
    service = compose(COMPOSE)["services"]["redis"]
    surroundings = os.environ | environment(COMPOSE, "redis", PASSWORDS)
    surroundings["PATH"] = os.pathsep.join([str(redis_binary().parent), os.environ["PATH"]])
    program = [interpolate(part, PASSWORDS) for part in service["command"]]
    program[-1] = program[-1].replace("redis-server", f"redis-server --port {port} --dir {folder}")
    health = service["healthcheck"]["test"][1].replace("redis-cli", f"redis-cli -p {port}")
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen([*prefix, *program], env=surroundings, stdout=log, stderr=log)
    stack.callback(_stopped, server)
    asks = [*prefix, "sh", "-c", health]
    wait_for(lambda: subprocess.run(asks, env=surroundings, check=False).returncode == 0, "Redis", 60)
    return f"redis://:{PASSWORDS['HEARTH_REDIS_PASSWORD']}@{host}:{port}/0"


def _stopped(server: subprocess.Popen[bytes]) -> None:
    """Stop Redis as its container is stopped: Redis must get the signal itself and end by itself."""
    server.terminate()
    assert server.wait(timeout=30) == 0
