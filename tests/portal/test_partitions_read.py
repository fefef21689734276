"""Pages, the API, closing and reconciliation read only partitions of days in their period: EXPLAIN says which."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from msgspec.structs import replace
from rest_framework.test import APIClient

from billing.ledger import partitions
from billing.ledger.partitions import DEFAULT, PARENT
from billing.months import closing
from billing.reports.statements import Month
from reconciliation import books
from tenants.audit import SYSTEM
from tenants.models import Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]

NOON = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
DAY = {"from": "2026-03-16T00:00:00Z", "to": "2026-03-17T00:00:00Z"}
REQUEST = fixtures.request_id(NOON, 1)
THAT_DAY = {"billing_usagerecord_2026_03_16"}
#: Its days, and the default one for those of them that have none.
MARCH = {f"billing_usagerecord_2026_03_{day:02}" for day in range(10, 25)} | {DEFAULT}


class Plans:
    """The usage partitions of the plan of each query in the block, and the indexes that it has."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.indexes: set[str] = set()

    def __call__(self, execute: Callable[..., Any], statement: str, params: Any, many: bool, context: Any) -> Any:
        """Run a query. EXPLAIN it first if it names the table."""
        if PARENT in statement and "INSERT" not in statement and not many:
            with context["connection"].connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", params)
                (plan,) = cursor.fetchone()
            document = plan if isinstance(plan, list) else json.loads(plan)
            self.read |= set(_named(document, "Relation Name"))
            self.indexes |= set(_named(document, "Index Name"))
        return execute(statement, params, many, context)


def _named(node: Any, what: str) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from _named(each, what)
    elif isinstance(node, dict):
        if str(node.get(what, "")).startswith(PARENT):
            yield node[what]
        for each in node.values():
            yield from _named(each, what)


@contextmanager
def plans() -> Iterator[Plans]:
    found = Plans()
    with connection.execute_wrapper(found):
        yield found


@pytest.fixture
def used(world: World) -> World:
    """A request on the 16th and one on the 18th of March; partitions from the 10th to the 24th."""
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    partitions.ensure(datetime(2026, 3, 10, tzinfo=UTC))
    fixtures.store([fixtures.answered(world, world.acme, NOON + timedelta(days=days), 1) for days in (0, 2)])
    return world


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/api/v1/usage", {"tenant": "acme", **DAY}),
        ("/api/v1/usage", {"tenant": "acme", "request_id": "sent-by-a-client", **DAY}),
        ("/api/v1/usage", {"tenant": "acme", "request_id": str(REQUEST), **DAY}),
        ("/api/v1/usage", {"tenant": "acme", "errors": "true", "format": "csv", **DAY}),
        ("/api/v1/usage", {"state": "complete", **DAY}),
        (f"/api/v1/usage/{REQUEST}", {}),
    ],
)
def test_the_api_reads_the_day_that_it_is_asked_for(
    as_operator: APIClient, used: World, path: str, query: dict[str, str]
) -> None:
    with plans() as found:
        answer = as_operator.get(path, query)
        assert answer.status_code == 200
        b"".join(answer)
    assert found.read == THAT_DAY


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/portal/requests/", DAY),
        ("/portal/requests/", {"id": str(REQUEST), **DAY}),
        ("/portal/requests/", {"id": "sent-by-a-client", **DAY}),
        ("/portal/tenants/acme/requests/", DAY),
        ("/portal/tenants/acme/requests.csv", DAY),
        (f"/portal/tenants/acme/requests/{REQUEST}/", {}),
        ("/portal/tenants/acme/", {"from": "2026-03-16T11:00:00Z", "to": "2026-03-16T12:15:00Z"}),
    ],
)
def test_a_page_reads_the_day_that_it_shows(signed_in: SignIn, used: World, path: str, query: dict[str, str]) -> None:
    browser = signed_in(used.operator)
    with plans() as found:
        answer = browser.get(path, query)
        assert answer.status_code == 200
        b"".join(answer)
    assert found.read == THAT_DAY


@pytest.mark.parametrize(
    ("path", "filters", "index"),
    [
        ("/portal/requests/", {"end_user": "u-1"}, "_end_user_id_idx"),
        ("/portal/requests/", {"id": "sent-by-a-client"}, "_client_request_id_id_idx"),
        ("/portal/requests/", {"id": str(REQUEST)[:13]}, "_pkey"),
        ("/portal/requests/", {"code": "rate_limit_exceeded"}, "_id_idx1"),
        ("/portal/tenants/acme/requests/", {"key": "demo"}, "_key_id_id_idx"),
        ("/portal/tenants/acme/requests/", {"end_user": "u-1"}, "_end_user_id_idx"),
        ("/portal/tenants/acme/requests/", {"tag": "app=search"}, "_tenant_id_id_idx"),
        ("/portal/tenants/acme/requests/", {"project": "default"}, "_tenant_id_id_idx"),
    ],
)
def test_an_index_of_the_day_serves_each_search(
    signed_in: SignIn, used: World, path: str, filters: dict[str, str], index: str
) -> None:
    browser = signed_in(used.operator)
    crowd = [fixtures.answered(used, used.globex, NOON, number) for number in range(2, 400)]
    crowd = [replace(row, end_user=str(row.id), client_request_id=str(row.id)) for row in crowd]
    crowd.append(fixtures.refused(used, used.globex, NOON, 400))
    fixtures.store(crowd)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE billing_usagerecord")
        cursor.execute("SET LOCAL enable_seqscan = off")
    with plans() as found:
        assert browser.get(path, {**DAY, **filters}).status_code == 200
    assert found.read == THAT_DAY
    assert any(name.endswith(index) for name in found.indexes), found.indexes


def test_statements_closing_and_reconciliation_read_the_month(as_operator: APIClient, used: World) -> None:
    later = datetime(2026, 4, 2, tzinfo=UTC)
    partitions.ensure(datetime(2026, 4, 3, tzinfo=UTC))
    with plans() as found:
        assert as_operator.get("/api/v1/tenants/acme/statements/2026-03").status_code == 200
    assert found.read == MARCH
    with plans() as found:
        assert books.compare(later) == 2
    assert found.read == MARCH | {f"billing_usagerecord_2026_04_{day:02}" for day in range(3, 18)}
    with plans() as found:
        closing.close(SYSTEM, Month(tenant=used.acme.tenant, year=2026, month=3))
    assert found.read == MARCH
