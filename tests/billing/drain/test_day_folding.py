"""Days folded into daily roll-ups change no report, survive late rows and prices, and are compared with roll-ups."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from billing.drain import batch, day_folding
from billing.ledger import daily_rollups, partitions
from billing.ledger.daily_rollups import DAY
from billing.ledger.usage_rows import UsageRow
from billing.models import DailyRollup, FoldedDay
from billing.pricing.prices import DEMO_RATES
from billing.reports import breakdown, latency, savings, usage
from portal.reporting.periods import Period
from reconciliation import books
from reconciliation.models import BookGap
from tenants.ids import TenantId, new_id
from tests.billing.ledger.test_usage_only_grows import as_process
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 16, tzinfo=UTC)
DAYS = 8
NOW = START + DAYS * DAY + timedelta(hours=25)
BERLIN = ZoneInfo("Europe/Berlin")
PERIOD = Period(start=START + timedelta(hours=5), end=NOW - timedelta(hours=3), preset=None)
LOCAL = Period(start=START - timedelta(hours=1), end=START + 7 * DAY - timedelta(hours=1), preset=None, zone=BERLIN)


def row(moment: datetime, number: int = 0, tenant_id: TenantId | None = None) -> UsageRow:
    """Return a request of one of three tenants, with times that differ."""
    source = random.Random(number)
    made = row_at(moment, tenant_id or TENANTS[number % 3], model_name=f"model-{number % 2}")
    return msgspec.structs.replace(
        made, ttft_ms=source.lognormvariate(5, 1), tpot_ms=source.lognormvariate(3, 1) if number % 4 else None
    )


TENANTS = tuple(TenantId(new_id()) for _ in range(3))


@pytest.fixture
def rows() -> list[UsageRow]:
    """Requests of all the time, until now; those of one model have no price yet."""
    partitions.ensure(START)
    price_from(START - DAY, DEMO_RATES, "model-0")
    source = random.Random(5)
    made = [row(START + source.random() * (NOW - START), number) for number in range(90)]
    with as_process():
        store(*made[:60])
        store(*made[60:])
    return made


def reported() -> Mapping[str, Any]:
    """Return what reports of all tenants say of long periods."""
    found: dict[str, Any] = {
        "totals": usage.totals(PERIOD, None),
        "tenants": usage.by_tenant(PERIOD),
        "models": usage.by_model(PERIOD, None),
        "series": usage.series_at(PERIOD, None, PERIOD.moments),
        "local": usage.series_at(LOCAL, None, LOCAL.moments),
        "latency": latency.total(PERIOD, None),
        "local days": breakdown.grouped(LOCAL, None, "day"),
        "centres": breakdown.grouped(PERIOD, None, "cost_centre"),
        "saved": savings.grouped(PERIOD, None, "key"),
    }
    for by in ("tenant", "project", "key", "model", "day"):
        found[by] = breakdown.grouped(PERIOD, None, by)
    return found


def test_reports_say_the_same_of_folded_days(rows: list[UsageRow]) -> None:
    before = reported()
    with as_process():
        assert day_folding.fold(NOW) == DAYS
        assert day_folding.fold(NOW) == 0
    assert reported() == before
    # They do read daily roll-ups: without these the requests of the folded days are missing.
    DailyRollup.objects.all().delete()
    assert usage.totals(PERIOD, None).requests < before["totals"].requests
    assert usage.totals(PERIOD, TENANTS[0]).requests > 0


def test_a_day_is_folded_a_day_after_its_end(rows: list[UsageRow]) -> None:
    assert day_folding.fold(START + 2 * DAY - timedelta(seconds=1)) == 0
    assert day_folding.fold(START + 2 * DAY) == 1
    assert daily_rollups.folded(START - 9 * DAY, NOW) == [START]


def test_a_late_row_counts_at_once_and_its_day_is_folded_again(rows: list[UsageRow]) -> None:
    day_folding.fold(NOW)
    before = usage.totals(PERIOD, None).requests
    with as_process():
        store(row(START + 3 * DAY + timedelta(hours=7)))
        late = reported()
        assert late["totals"].requests == before + 1
        assert START + 3 * DAY in daily_rollups.waiting(START + DAYS * DAY)
        assert day_folding.fold(NOW) == 1
    assert reported() == late


def test_a_price_that_comes_later_counts_at_once(rows: list[UsageRow]) -> None:
    day_folding.fold(NOW)
    before = usage.totals(PERIOD, None).amount_pico
    price_from(START - DAY, DEMO_RATES, "model-1")
    with as_process():
        assert batch.rate_unrated() == 45
        priced = reported()
        assert priced["totals"].amount_pico > before
        day_folding.fold(NOW)
    assert reported() == priced


def test_a_batch_that_comes_while_a_day_is_folded_makes_it_wait(rows: list[UsageRow]) -> None:
    daily_rollups.announce(START)
    store(row(START + timedelta(hours=7)))
    assert not daily_rollups.write(START)
    assert not DailyRollup.objects.exists()
    assert day_folding.fold(START + 2 * DAY) == 1
    # Another worker that announced the same day finds it folded.
    assert not daily_rollups.write(START)


def test_a_day_that_differs_is_a_gap_and_is_folded_again(rows: list[UsageRow]) -> None:
    day_folding.fold(NOW)
    gaps = BookGap.objects.filter(book=BookGap.Book.DAYS)
    books.compare(NOW, START)
    assert not gaps.exists()
    changed = DailyRollup.objects.filter(tenant_id=TENANTS[1]).first()
    assert changed is not None
    DailyRollup.objects.filter(id=changed.id).update(completion_tokens=changed.completion_tokens + 1)
    books.compare(NOW, START)
    gap = gaps.get()
    assert (gap.tenant_id, gap.month, gap.book_tokens - gap.usage_tokens) == (TENANTS[1], "2026-03", 1)
    assert not FoldedDay.objects.exists()
    assert day_folding.fold(NOW) == DAYS
    books.compare(NOW, START)
    assert not gaps.exists()
