"""A flood of requests without a valid token, against a real portal process and its database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from portal.access.requests import load_limits
from tenants.keys import key_format, tokens
from tenants.models import PolicyEpoch
from tests.portal import fixtures
from tests.portal.portal_process import other_connection, portal_process

STRANGER, OPERATOR = "127.0.0.2", "127.0.0.3"
PATIENCE_SECONDS = 60
_STATUS = re.compile(rb"HTTP/1\.1 (\d+)")


@pytest.fixture
def portal(transactional_db: None, app_database_url: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A portal process: its port, and an operator's token."""
    PolicyEpoch.objects.get_or_create(id=1)
    world = fixtures.build()
    token = tokens.issue(fixtures.OPERATOR, world.operator, name="test").secret
    with portal_process(app_database_url, tmp_path / "portal.log") as base:
        yield base.rpartition(":")[2], token


@pytest.mark.django_db(transaction=True)
def test_requests_without_a_valid_token_leave_an_operator_his_database_connections(portal: tuple[str, str]) -> None:
    port, token = portal
    strangers, served, most = asyncio.run(_flood(int(port), token))
    assert set(strangers) <= {401, 503}
    assert strangers.count(401) >= load_limits.RUNNING_OF_CLIENT + load_limits.WAITING_OF_CLIENT
    assert served == [200] * len(served)
    assert most <= load_limits.RUNNING + 1
    with closing(other_connection()) as database:
        assert _portal_connections(database) == 0


async def _flood(port: int, token: str) -> tuple[list[int], list[int], int]:
    """Send 250 requests of a stranger at once, and an operator's one after another.

    Returns the statuses of both, and the most connections that the portal had to the database.
    """
    unknown = key_format.generate("ho").text()
    flood = [asyncio.ensure_future(_request(port, unknown, STRANGER)) for _ in range(250)]
    served: list[int] = []
    most = 0
    with closing(other_connection()) as database:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all(each.done() for each in flood) or len(served) < 5:
                served.append(await _request(port, token, OPERATOR))
                most = max(most, _portal_connections(database))
            return await asyncio.gather(*flood), served, most


async def _request(port: int, token: str, address: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(
        f"GET /api/v1/tenants HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n"
        "connection: close\r\n\r\n".encode()
    )
    found = _STATUS.match(await reader.read())
    writer.close()
    assert found is not None
    return int(found[1])


def _portal_connections(database: psycopg.Connection[Any]) -> int:
    """Count the connections of the role hearth_app to the test's database."""
    row = database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'hearth_app' AND datname = %s",
        [connection.settings_dict["NAME"]],
    ).fetchone()
    database.rollback()
    assert row is not None
    return int(row[0])
