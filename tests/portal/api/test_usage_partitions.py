"""The partitions of usage and the files of retired days in the API: for operators only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from rest_framework.test import APIClient

from billing.ledger import partitions
from billing.models import UsageExport
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

PARTITIONS, EXPORTS = "/api/v1/usage/partitions", "/api/v1/usage/exports"
MARCH = datetime(2025, 3, 1, tzinfo=UTC)


@pytest.fixture
def exports(world: World) -> list[UsageExport]:
    """The files of the first three days of a month."""
    days = [partitions.of_day((MARCH + timedelta(days=each)).date()) for each in range(3)]
    return [
        UsageExport.objects.create(
            partition=each.table,
            begins_at=each.begin,
            ends_at=each.end,
            rows=2,
            file_bytes=100,
            sha256="0" * 64,
            node="n1",
            path=f"/exports/usage-{each.name}.csv.gz",
            retired_at=MARCH,
        )
        for each in days
    ]


def test_an_operator_lists_every_partition(as_operator: APIClient, world: World) -> None:
    partitions.ensure(datetime(2031, 11, 30, tzinfo=UTC))
    *days, last = as_operator.get(PARTITIONS).json()["data"]
    made = next(each for each in days if each["name"] == "2031-11-30")
    assert (made["table"], made["begins_at"]) == ("billing_usagerecord_2031_11_30", "2031-11-30T00:00:00Z")
    assert made["bytes"] > 0
    assert (last["name"], last["begins_at"]) == ("default", None)


def test_an_operator_pages_through_the_files_and_gets_them_as_csv(
    as_operator: APIClient, exports: list[UsageExport]
) -> None:
    first = as_operator.get(EXPORTS, {"limit": 2}).json()
    assert [each["path"] for each in first["data"]] == [each.path for each in exports[:0:-1]]
    second = as_operator.get(EXPORTS, {"limit": 2, "after": first["next_after"]}).json()
    assert ([each["id"] for each in second["data"]], second["has_more"]) == ([str(exports[0].id)], False)
    header, *rows = b"".join(as_operator.get(EXPORTS, {"format": "csv"})).decode().splitlines()
    assert header.startswith("partition,begins_at,ends_at,rows,file_bytes,sha256,")
    assert rows[0].startswith("billing_usagerecord_2025_03_03,2025-03-03T00:00:00+00:00,2025-03-04T00:00:00+00:00,2,")
    assert len(rows) == 3
    assert error_of(as_operator.get(EXPORTS, {"format": "xml"}))["param"] == "format"


def test_a_tenant_sees_neither(as_acme: APIClient, exports: list[UsageExport]) -> None:
    for url in (PARTITIONS, EXPORTS):
        assert as_acme.get(url).status_code in {401, 403}
