"""Whether the roles of an instance find room for all their connections is checked on a real server."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from django.db import connection

from gateway.pipeline import async_requests
from hearth.checks import database_connections, deployment
from hearth.instance import instance
from workers.models import Node, Pool

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def url(app_database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of the tests' database, as role hearth_app, in the settings."""
    address = app_database_url.replace("/hearth?", f"/{connection.settings_dict['NAME']}?")
    monkeypatch.setenv("DATABASE_URL", address)
    monkeypatch.setenv("HEARTH_DATA_DIR", str(tmp_path))
    return address


def problems() -> list[str]:
    """Return what is found about connections."""
    found = deployment.findings(instance.from_environment())
    return [each.problem for each in found if "PostgreSQL accepts" in each.problem]


def test_the_embedded_server_has_room_for_every_role(url: str) -> None:
    server = database_connections.accepted(url, "other")
    with psycopg.connect(url) as database:
        assert database.execute("SHOW max_connections").fetchone() == ("200",)
    assert server == database_connections.Server(
        connections=197,
        reserved=3,
        further_nodes=0,
        further_heads=0,
        locks=database_connections.LOCKS,
        locks_for_each=512,
    )
    assert problems() == []


def test_a_server_with_less_room_than_the_roles_may_take_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database_connections.OF_ROLE, "portal", 200)
    assert len(problems()) == 1


def test_a_server_with_fewer_locks_than_a_year_of_usage_takes_is_found(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_connections, "LOCKS", 512 * 201)
    found = [each for each in deployment.findings(instance.from_environment()) if "locks at once" in each.problem]
    assert [(each.problem[:38], each.remedy) for each in found] == [
        (
            "PostgreSQL holds 102,400 locks at once",
            "Set max_locks_per_transaction of the server to 515 or more, and restart it.",
        )
    ]


def test_further_gateways_and_nodes_need_more(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool.objects.create(name="gpu", kind="gpu")
    for name in ("here", "there"):
        Node.objects.create(name=name, pool=pool)
    found = database_connections.accepted(url, "here")
    assert found is not None
    assert found.further_nodes == 1
    one = instance.from_environment()
    monkeypatch.setenv("HEARTH_GATEWAY_PROCESSES", "3")
    three = instance.from_environment()
    assert database_connections.needed(three, 1) - database_connections.needed(one, 0) == (
        2 * database_connections.OF_ROLE["gateway"] + database_connections.OF_NODE
    )


def test_a_gateways_bound_has_room_for_its_threads_that_use_the_database() -> None:
    assert database_connections.OF_ROLE["gateway"] == async_requests.THREADS + 3


def test_a_server_that_does_not_respond_is_not_compared() -> None:
    assert database_connections.accepted("postgresql://hearth_app@127.0.0.1:1/hearth", "here") is None


def test_a_guard_that_is_missing_from_the_database_is_found(url: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tenants_limit NO FORCE ROW LEVEL SECURITY")
        try:
            found = deployment.findings(instance.from_environment())
        finally:
            cursor.execute("ALTER TABLE tenants_limit FORCE ROW LEVEL SECURITY")
    assert any("row-level security is not forced on tenants_limit" in each.problem for each in found)
