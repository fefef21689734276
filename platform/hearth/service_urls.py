"""Addresses that the settings derive: of servers, as Django and Celery expect them, and of the portal."""

from __future__ import annotations

from typing import Any

from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import SOCKET_NAME
from hearth.environment import Environment
from hearth.paths import sockets_dir
from hearth.secrets import DatabasePasswords
from tenants.database import address

#: Values of HEARTH_HOST at which the portal answers on this machine alone, under that same name.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

BACKEND = "tenants.database.backend"

#: When libpq gives up a silent server; by default that takes hours, and a gateway that waits on a dead connection
#: misses revoked keys. In seconds, except tcp_user_timeout, which is in milliseconds. A URL may override them.
DATABASE_TIMEOUTS = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}

#: The Redis user of nodes, and its rules for ACL SETUSER: Celery's keys and the channel of its control commands, which
#: Redis compares literally, in database 0. No command that reads the names of other keys, no PUBLISH, with which a
#: stolen node could send control commands to every worker, and of scripting only what Celery needs: FUNCTION, which
#: +@write allows, stores code in the server. Compose and docs/deployment.md repeat them.
NODE_REDIS_USER = "hearth-node"
NODE_REDIS_RULES = (
    "~hearth.celery.* resetchannels &hearth.celery./0.celery.pidbox -@all +@read +@write +@connection +@transaction "
    "+@pubsub -@scripting +eval +evalsha +script|load +script|exists +time -@dangerous -scan -randomkey -publish"
)


def portal_url(environment: Environment) -> str:
    """Return the portal's address for links that leave this process; empty if nobody set it and it cannot be known."""
    if environment.portal_url:
        return environment.portal_url
    host = environment.host
    if host not in _LOOPBACK:
        return ""
    return f"http://{f'[{host}]' if ':' in host else host}:{environment.port + 1}"


def django_database(url: str, *, role: str = "", kept_seconds: int = 0) -> dict[str, Any]:
    """Return Django's database entry for a ``postgresql://`` URL, which names a socket folder as ``?host=``.

    ``role`` is shown in ``pg_stat_activity``. ``kept_seconds``: how long a thread keeps its connection. An empty URL
    gives an entry that cannot connect, so that commands that need no database still run. Raises ValueError.
    """
    if not url:
        return {"ENGINE": BACKEND, "NAME": address.DEFAULT_DATABASE, "HOST": "/nonexistent"}
    found = address.parse(url)
    return {
        "ENGINE": BACKEND,
        "NAME": found.name,
        "USER": found.user,
        "PASSWORD": found.password,
        "HOST": found.host,
        "PORT": found.port,
        "OPTIONS": {**DATABASE_TIMEOUTS, **({"application_name": f"hearth-{role}"} if role else {}), **found.options},
        "CONN_MAX_AGE": kept_seconds,
        "CONN_HEALTH_CHECKS": True,
    }


def database_url(environment: Environment, passwords: DatabasePasswords) -> str:
    """Return DATABASE_URL, or the address of this data directory's embedded PostgreSQL, as role hearth_app."""
    return environment.database_url or _embedded(environment, passwords).urls.app


def _embedded(environment: Environment, passwords: DatabasePasswords) -> PostgresServer:
    data_dir = environment.data_dir
    return PostgresServer(
        data_dir=data_dir / "postgres",
        sockets_dir=sockets_dir(data_dir),
        log_path=data_dir / "logs" / "postgres.log",
        passwords=passwords,
    )


def redis_url(environment: Environment, own_url: str) -> str:
    """Return the Redis of one purpose: ``own_url``, or REDIS_URL, or the embedded server of this data directory.

    The last lets a plain `celery -A hearth …` find the Redis that `hearth up` started.
    """
    embedded = f"unix://{sockets_dir(environment.data_dir) / SOCKET_NAME}?db=0"
    return own_url or environment.redis_url or embedded


def portal_origins(environment: Environment) -> tuple[str, ...]:
    """Return the origins of the portal's pages: as set, else its port at each host name to which it answers.

    None for a pattern of host names. A proxy with TLS serves them at its own port.
    """
    if environment.portal_url:
        return (environment.portal_url,)
    hosts = [host for host in environment.allowed_hosts if host != "*" and not host.startswith(".")]
    if environment.tls_proxy:
        return tuple(f"https://{host}" for host in hosts)
    return tuple(f"http://{host}:{environment.port + 1}" for host in hosts)
