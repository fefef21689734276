"""A database of two servers: a process finds the primary by itself, and leaves one that has become read-only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler, OperationalError
from pytest_django.plugin import DjangoDbBlocker

from hearth.secrets import DatabasePasswords
from hearth.service_urls import django_database
from tests.replicated import postgres
from tests.replicated.postgres import PostgresPair

PATIENCE_SECONDS = 60


@pytest.fixture
def pair(django_db_blocker: DjangoDbBlocker) -> Iterator[PostgresPair]:
    """Both servers, with a table, and the right to use Django's backend on them."""
    passwords = DatabasePasswords(superuser="s" * 16, owner="o" * 16, app="a" * 16)
    with postgres.running(passwords) as made:
        with psycopg.connect(made.owner_url, autocommit=True) as owner:
            owner.execute("CREATE TABLE written (number integer)")
        with django_db_blocker.unblock():
            yield made


def connection_to(url: str) -> BaseDatabaseWrapper:
    entry = django_database(url, kept_seconds=60)
    found: BaseDatabaseWrapper = ConnectionHandler({"default": entry})["default"]
    return found


def port_of(connection: BaseDatabaseWrapper) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT inet_server_port()")
        return int(cursor.fetchone()[0])


def write(connection: BaseDatabaseWrapper) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO written VALUES (1)")


def eventually(work: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            work()
        except OperationalError:
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.05)
        else:
            return


# One test, because making the servers takes longer than it.
def test_a_connection_leaves_a_server_that_refuses_writes_and_finds_the_next_primary(pair: PostgresPair) -> None:
    connection = connection_to(pair.app_url)
    first, second = pair.ports
    try:
        write(connection)
        assert port_of(connection) == first

        pair.read_only(pair.primary, "on")

        def refused() -> bool:
            try:
                write(connection)
            except OperationalError as error:
                return "read-only" in str(error)
            return False

        deadline = time.monotonic() + PATIENCE_SECONDS
        while not refused():
            assert time.monotonic() < deadline, "timed out"
        assert connection.connection.closed  # the refused statement has closed it
        connection.close()
        with pytest.raises(OperationalError, match="read-only"):
            write(connection)  # no server of the address accepts writes

        pair.read_only(pair.primary, "off")
        eventually(lambda: write(connection))

        # A connection that only reads is closed when it is next checked.
        connection.close_if_unusable_or_obsolete()
        assert connection.connection is not None
        pair.read_only(pair.primary, "on")
        while connection.is_usable():
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.05)
        pair.read_only(pair.primary, "off")
        connection.close()

        write(connection)
        pair.fail_over()
        with pytest.raises(OperationalError):
            write(connection)
        connection.close()
        eventually(lambda: write(connection))
        assert port_of(connection) == second
    finally:
        connection.close()
