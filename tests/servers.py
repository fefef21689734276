"""A pytest plugin: one real PostgreSQL and one real Redis for the whole test session.

Loaded with ``-p`` (pyproject.toml), because pytest-django reads the settings before any conftest.py. Where
DATABASE_URL and REDIS_URL are given those servers are used; otherwise the embedded ones run in a temporary data
directory. DATABASE_URL is the owner's, who may create the test database; :func:`app_database_url` is the
address that a role of a running instance would use.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from django import db
from psycopg import sql
from redis import Redis

from hearth import secrets
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import RedisServer
from hearth.paths import agent_sockets_dir, gateway_sockets_dir, sockets_dir
from hearth.process_records import read_record, write_record
from hearth.service_urls import NODE_REDIS_RULES, NODE_REDIS_USER
from workers.processes import identify, is_running

PREFIX = "hearth-test-"
OWNER_RECORD = "pytest.json"
#: The node whose agents tests run as processes.
NODE = "n1"
NODE_PASSWORD = "only-for-tests"

_stops: list[Callable[[], None]] = []


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the servers and point the environment at them, before pytest-django reads the settings."""
    options = early_config.known_args_namespace
    if options.help or options.version:
        return
    _sweep()
    data_dir = Path(tempfile.mkdtemp(prefix=PREFIX))
    data_dir.chmod(0o711)  # as root, the servers run as another user, who must pass
    _stops.append(lambda: shutil.rmtree(data_dir, ignore_errors=True))
    _stops.append(lambda: remove_sockets(data_dir))
    me = identify(os.getpid())
    assert me is not None
    write_record(data_dir / OWNER_RECORD, me)
    os.environ["HEARTH_DATA_DIR"] = str(data_dir)
    if getattr(options, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        return  # this process only hands out tests; each process that runs them has servers of its own
    postgres, redis = _servers(data_dir)
    if not os.environ.get("DATABASE_URL"):
        _stops.append(postgres.stop)
        os.environ["DATABASE_URL"] = postgres.start().owner
        _cheapen_superuser(postgres)
        _add_node_login(postgres)
    if not os.environ.get("REDIS_URL"):
        _stops.append(redis.stop)
        os.environ["REDIS_URL"] = redis.start()
        _add_node_user(redis)


def remove_sockets(data_dir: Path) -> None:
    """Remove the folders of sockets, outside a data directory, of the servers and roles that ran on it."""
    for named in (sockets_dir, agent_sockets_dir, gateway_sockets_dir):
        shutil.rmtree(named(data_dir), ignore_errors=True)


def pytest_unconfigure() -> None:
    """Stop what was started, last first, and remove the data."""
    while _stops:
        _stops.pop()()


@pytest.fixture(scope="session")
def app_database_url() -> Iterator[str]:
    """Return the address of the session's embedded PostgreSQL as role hearth_app; skip on a server of your own."""
    data_dir = Path(os.environ["HEARTH_DATA_DIR"])
    postgres, _ = _servers(data_dir)
    if os.environ["DATABASE_URL"] != postgres.urls.owner:
        pytest.skip("DATABASE_URL names a server whose other roles are unknown here")
    yield postgres.urls.app


def database_is_embedded() -> bool:
    """Return whether the session has a PostgreSQL of its own, all of whose roles are known."""
    postgres, _ = _servers(Path(os.environ["HEARTH_DATA_DIR"]))
    return os.environ["DATABASE_URL"] == postgres.urls.owner


def owner_url() -> str:
    """Return the address of the test database as the role that owns it."""
    role = db.connection.settings_dict
    return f"postgresql://{role['USER']}:{role['PASSWORD']}@/{role['NAME']}?host={role['HOST']}"


def superuser_url(database: str) -> str:
    """Return the address of a database of the session's embedded PostgreSQL as its superuser."""
    postgres, _ = _servers(Path(os.environ["HEARTH_DATA_DIR"]))
    return _superuser_url(postgres, database)


def node_database_url() -> str | None:
    """Return the address of the session's PostgreSQL as the role of NODE; None on a server of your own."""
    postgres, _ = _servers(Path(os.environ["HEARTH_DATA_DIR"]))
    return _node_url(postgres) if os.environ["DATABASE_URL"] == postgres.urls.owner else None


def node_redis_url() -> str | None:
    """Return the address of the session's Redis as the user of nodes; None on a server of your own."""
    _, redis = _servers(Path(os.environ["HEARTH_DATA_DIR"]))
    if os.environ["REDIS_URL"] != redis.url:
        return None
    return redis.url.replace("unix://", f"unix://{NODE_REDIS_USER}:{NODE_PASSWORD}@")


def _add_node_user(redis: RedisServer) -> None:
    with Redis.from_url(redis.url) as client:
        client.execute_command("ACL", "SETUSER", NODE_REDIS_USER, "on", f">{NODE_PASSWORD}", *NODE_REDIS_RULES.split())


def _node_url(postgres: PostgresServer) -> str:
    return urlsplit(postgres.urls.app)._replace(netloc=f"hearth_node_{NODE}:{NODE_PASSWORD}@").geturl()


def _superuser_url(postgres: PostgresServer, database: str) -> str:
    superuser = f"hearth_super:{postgres.passwords.superuser}@"
    return urlsplit(postgres.urls.owner)._replace(netloc=superuser, path=f"/{database}").geturl()


def _cheapen_superuser(postgres: PostgresServer) -> None:
    """Give the superuser, who connects after most tests, a verifier of few rounds as the server's other roles have."""
    with psycopg.connect(_superuser_url(postgres, "postgres"), autocommit=True) as connection:
        password = postgres.passwords.superuser.encode()
        verifier = connection.pgconn.encrypt_password(password, b"hearth_super", b"scram-sha-256")
        connection.execute(sql.SQL("ALTER ROLE hearth_super PASSWORD {}").format(sql.Literal(verifier.decode())))


def _add_node_login(postgres: PostgresServer) -> None:
    """Create the role of NODE, as an operator does for each node."""
    with psycopg.connect(_superuser_url(postgres, "postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE hearth_node_{NODE} LOGIN PASSWORD '{NODE_PASSWORD}' IN ROLE hearth_node")
        connection.execute(f"GRANT hearth_node_{NODE} TO hearth_owner WITH INHERIT FALSE, SET TRUE")


def _servers(data_dir: Path) -> tuple[PostgresServer, RedisServer]:
    found = secrets.load_or_create(data_dir)
    sockets = sockets_dir(data_dir)
    postgres = PostgresServer(
        data_dir=data_dir / "postgres",
        sockets_dir=sockets,
        log_path=data_dir / "postgres.log",
        passwords=found.database_passwords,
        durable=False,
    )
    redis = RedisServer(data_dir=data_dir / "redis", sockets_dir=sockets, log_path=data_dir / "redis.log")
    return postgres, redis


def _sweep() -> None:
    """Stop and remove what test sessions left that were killed."""
    for data_dir in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = read_record(data_dir / OWNER_RECORD)
        if owner is None or is_running(owner):
            continue
        for server in _servers(data_dir):
            server.stop()
        remove_sockets(data_dir)
        shutil.rmtree(data_dir, ignore_errors=True)
