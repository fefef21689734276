"""Migrations that remove what the version before needs wait; no migration waits long for a table in use."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from tenants.management.commands import migrate

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def app(settings: Any) -> Iterator[None]:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.tenants.contracting.apps.Contracting"]
    yield
    call_command("migrate", "contracting", "zero", verbosity=0)


def test_what_contracts_waits_until_it_is_asked_for() -> None:
    call_command("migrate", verbosity=0)
    assert _applied() == ["0001_initial"]
    assert _columns() == ["new", "old"]
    call_command("migrate", verbosity=0)
    assert _applied() == ["0001_initial"]
    call_command("migrate", contract=True, verbosity=0)
    assert _applied() == ["0001_initial", "0002_without_old"]
    assert _columns() == ["new"]


def test_a_table_in_use_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    call_command("migrate", verbosity=0)
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(migrate, "RETRY_SECONDS", 0.0)
    user = _user_of_the_table()
    pid = user.info.backend_pid

    class Released(StringIO):
        def write(self, text: str) -> int:
            user.rollback()
            return super().write(text)

    output = Released()
    call_command("migrate", contract=True, verbosity=0, stderr=output)
    user.close()
    (line,) = output.getvalue().splitlines()
    assert line.startswith("a table is in use, trying again (try 1 of 20): ALTER TABLE contracting DROP COLUMN old")
    assert f" waits for contracting, in use by process {pid} of PostgreSQL (" in line
    assert _columns() == ["new"]
    assert _lock_timeout() == "0"


def test_a_table_that_stays_in_use_is_reported_and_nothing_is_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    call_command("migrate", verbosity=0)
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(migrate, "LOCK_RETRIES", 2)
    monkeypatch.setattr(migrate, "RETRY_SECONDS", 0.0)
    user = _user_of_the_table()
    output = StringIO()
    with pytest.raises(CommandError, match=rf"stayed in use for .* waits for contracting, .* {user.info.backend_pid} "):
        call_command("migrate", contract=True, verbosity=0, stderr=output)
    assert [line.partition(":")[0] for line in output.getvalue().splitlines()] == [
        "a table is in use, trying again (try 1 of 2)"
    ]
    user.close()
    assert _columns() == ["new", "old"]
    assert _lock_timeout() == "0"


def _user_of_the_table() -> psycopg.Connection[Any]:
    """Return a connection whose open transaction has read the table."""
    user = psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor, "context": None})
    user.execute("SELECT FROM contracting")
    return user


def _applied() -> list[str]:
    rows = MigrationRecorder.Migration.objects.filter(app="contracting").order_by("name")
    return list(rows.values_list("name", flat=True))


def _columns() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT column_name FROM information_schema.columns WHERE table_name = 'contracting' ORDER BY 1")
        return [row[0] for row in cursor.fetchall()]


def _lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0])
