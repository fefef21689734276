"""A database that an operator made by hand: the owner migrates it, and gives the role that runs Hearth its rights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import call_command
from django.db import ProgrammingError, connection

from hearth import secrets
from hearth.embedded.postgres import PostgresServer
from hearth.paths import sockets_dir
from tests import servers
from tests.ports import INSTANCE_PORTS, free_ports

PASSWORD = "only-for-this-test"


@pytest.fixture(scope="module")
def migrated(shared_instance_dir: Path) -> Iterator[PostgresServer]:
    """A server whose database ``template`` the owner has migrated, and a role of another name to run Hearth."""
    postgres = PostgresServer(
        data_dir=shared_instance_dir / "postgres",
        sockets_dir=sockets_dir(shared_instance_dir),
        log_path=shared_instance_dir / "postgres.log",
        passwords=secrets.load_or_create(shared_instance_dir).database_passwords,
        durable=False,
    )
    postgres.start()
    with psycopg.connect(superuser_url(postgres), autocommit=True) as connection:
        connection.execute("CREATE DATABASE template OWNER hearth_owner TEMPLATE template0")
        connection.execute(f"CREATE ROLE runner LOGIN PASSWORD '{PASSWORD}'")
    assert manage(postgres, "migrate", database="template").returncode == 0
    yield postgres
    postgres.stop()


@pytest.fixture
def server(migrated: PostgresServer) -> Iterator[PostgresServer]:
    """The server with a migrated database that has no default rights."""
    with psycopg.connect(superuser_url(migrated), autocommit=True) as connection:
        connection.execute("CREATE DATABASE elsewhere OWNER hearth_owner TEMPLATE template")
        yield migrated
        connection.execute("DROP DATABASE elsewhere WITH (FORCE)")
        connection.execute("REVOKE hearth_tenant FROM runner")


def superuser_url(server: PostgresServer) -> str:
    """Return the address an operator of a real server would use."""
    netloc = f"hearth_super:{server.passwords.superuser}@"
    return urlsplit(server.urls.owner)._replace(netloc=netloc, path="/postgres").geturl()


def manage(server: PostgresServer, *arguments: str, database: str = "elsewhere") -> subprocess.CompletedProcess[str]:
    """Run a management command as the owner."""
    owner = urlsplit(server.urls.owner)._replace(path=f"/{database}").geturl()
    command = [sys.executable, "-m", "django", *arguments]
    return subprocess.run(
        command, env=os.environ | {"DATABASE_URL": owner}, capture_output=True, text=True, check=False
    )


def as_runner(server: PostgresServer) -> psycopg.Connection[tuple[object, ...]]:
    """Connect as the role that runs Hearth."""
    address = urlsplit(superuser_url(server))
    return psycopg.connect(address._replace(netloc=f"runner:{PASSWORD}@", path="/elsewhere").geturl(), autocommit=True)


@pytest.mark.long
def test_the_owner_gives_the_running_role_its_rights_and_no_more(server: PostgresServer) -> None:
    refused = manage(server, "grant_role", "runner")
    assert refused.returncode != 0
    assert 'permission denied to grant role "hearth_tenant"' in refused.stderr

    with psycopg.connect(superuser_url(server), autocommit=True) as connection:
        connection.execute("GRANT hearth_tenant TO runner WITH INHERIT FALSE, SET TRUE")
    for _ in range(2):
        assert manage(server, "grant_role", "runner").returncode == 0
    with as_runner(server) as connection:
        assert connection.execute("SELECT value FROM tenants_policyepoch").fetchall() == [(1,)]
        assert connection.execute("SELECT count(*) FROM tenants_tenant").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DROP TABLE tenants_tenant")
        connection.execute("SET ROLE hearth_tenant")
        with pytest.raises(psycopg.errors.UndefinedObject):
            connection.execute("SELECT FROM tenants_tenant")


@pytest.mark.django_db
def test_a_role_that_inherits_the_tenant_role_is_refused(app_database_url: str) -> None:
    # in the session's database: a server of its own with all tables takes half a minute
    superuser = servers.superuser_url(connection.settings_dict["NAME"])
    with psycopg.connect(superuser, autocommit=True) as server:
        server.execute("CREATE ROLE heir")
        try:
            server.execute("GRANT hearth_tenant TO heir WITH INHERIT TRUE")
            with pytest.raises(ProgrammingError, match='permission denied to grant role "hearth_tenant"'):
                call_command("grant_role", "heir")
        finally:
            server.execute("DROP ROLE heir")


@pytest.mark.long
def test_a_database_of_a_newer_version_is_refused_before_anything_is_written(
    server: PostgresServer, instance_dir: Path
) -> None:
    elsewhere = urlsplit(superuser_url(server))._replace(path="/elsewhere").geturl()
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        connection.execute("DELETE FROM django_migrations WHERE app = 'workers'")
        connection.execute("INSERT INTO django_migrations VALUES (9999, 'tenants', '9999_of_tomorrow', now())")
        before = connection.execute("SELECT * FROM django_migrations ORDER BY id").fetchall()
        refused = manage(server, "migrate")
        assert connection.execute("SELECT * FROM django_migrations ORDER BY id").fetchall() == before
    assert refused.returncode != 0
    assert "does not know its migration tenants.9999_of_tomorrow" in refused.stderr

    owner = urlsplit(server.urls.owner)._replace(path="/elsewhere").geturl()
    port = str(free_ports(INSTANCE_PORTS))
    environment = os.environ | {"DATABASE_URL": owner, "HEARTH_DATA_DIR": str(instance_dir), "HEARTH_PORT": port}
    for command in (["up"], ["bootstrap"], ["role", "gateway"], ["node", "--engine", "simulated"]):
        hearth = [str(Path(sys.executable).with_name("hearth")), *command]
        started = subprocess.run(hearth, env=environment, capture_output=True, text=True, check=False)
        assert started.returncode == 1, command
        assert "belongs to a newer version of Hearth" in started.stderr, command
        assert "Nothing was changed." in started.stderr, command
