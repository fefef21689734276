"""Histograms of roll-ups are appended and merged by batches, and lose no request whatever a process tries."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import pytest

from billing.ledger import latency_buckets, partitions
from billing.ledger.rollups import APPENDED_BUCKETS
from billing.ledger.usage_rows import UsageRow
from billing.models import UsageRollup
from tenants.ids import TenantId, new_id
from tests.billing.ledger.test_usage_only_grows import as_process, refused
from tests.billing.usage_records import row_at, store

pytestmark = pytest.mark.django_db

MOMENT = datetime(2031, 11, 30, 12, 7, tzinfo=UTC)


@pytest.fixture
def rows() -> list[UsageRow]:
    """Requests of one key, whose times fall into more buckets than are appended."""
    partitions.ensure(MOMENT)
    source, tenant_id, first = random.Random(3), TenantId(new_id()), row_at(MOMENT, TenantId(new_id()))
    return [
        msgspec.structs.replace(
            row_at(MOMENT, tenant_id),
            project_id=first.project_id,
            key_id=first.key_id,
            ttft_ms=source.lognormvariate(5, 3),
            tpot_ms=source.lognormvariate(3, 3) if number % 3 else None,
        )
        for number in range(150)
    ]


def histogram() -> Counter[int]:
    """Return the stored histogram as readers add it up."""
    found: Counter[int] = Counter()
    rollup = UsageRollup.objects.get()
    for number, requests in zip(rollup.latency_buckets, rollup.latency_counts, strict=True):
        found[number] += requests
    return found


def test_batches_append_and_merge_to_the_histogram_of_all_rows(rows: list[UsageRow]) -> None:
    sizes = []
    with as_process():
        for first in range(0, len(rows), 10):
            store(*rows[first : first + 10])
            sizes.append(len(UsageRollup.objects.get().latency_buckets))
    expected = latency_buckets.of_times([row.ttft_ms for row in rows], [row.tpot_ms for row in rows])
    assert histogram() == expected
    assert any(later < earlier for earlier, later in pairwise(sizes)), "it never merged"
    assert sizes[-1] <= max(APPENDED_BUCKETS, len(expected))


@pytest.mark.parametrize(
    "shrunk",
    [
        "latency_buckets = '{}', latency_counts = '{}'",
        "latency_buckets = latency_buckets[2:], latency_counts = latency_counts[2:]",
        "latency_buckets[1] = latency_buckets[1] + 300",
        "latency_counts[1] = latency_counts[1] - 1",
        "latency_buckets = latency_buckets || 7::smallint, latency_counts = latency_counts || -1",
        "latency_counts = latency_counts || 1",
    ],
)
def test_a_histogram_loses_no_request(rows: list[UsageRow], shrunk: str) -> None:
    with as_process():
        store(*rows[:20])
    refused(f"UPDATE billing_usagerollup SET {shrunk}")
