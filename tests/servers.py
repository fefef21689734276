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

import pytest

from hearth import secrets
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import RedisServer
from hearth.paths import sockets_dir
from hearth.process_records import read_record, write_record
from workers.processes import identify, is_running

PREFIX = "hearth-test-"
OWNER_RECORD = "pytest.json"

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
    me = identify(os.getpid())
    assert me is not None
    write_record(data_dir / OWNER_RECORD, me)
    os.environ["HEARTH_DATA_DIR"] = str(data_dir)
    if getattr(options, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        return  # this process only hands out tests; each process that runs them has servers of its own
    postgres, redis = _servers(data_dir)
    _stops.append(lambda: shutil.rmtree(postgres.sockets_dir, ignore_errors=True))
    if not os.environ.get("DATABASE_URL"):
        _stops.append(postgres.stop)
        os.environ["DATABASE_URL"] = postgres.start().owner
    if not os.environ.get("REDIS_URL"):
        _stops.append(redis.stop)
        os.environ["REDIS_URL"] = redis.start()


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
            shutil.rmtree(server.sockets_dir, ignore_errors=True)
        shutil.rmtree(data_dir, ignore_errors=True)
