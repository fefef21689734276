"""Days folded into daily roll-ups change no report, survive late rows and prices, and are compared with roll-ups."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from django.db.models import Model

from billing.drain import batch, day_folding
from billing.ledger import daily_rollups, partitions
from billing.ledger.daily_rollups import DAY
from billing.ledger.usage_rows import UsageRow
from billing.models import (
    DailyBypassRollup,
    DailyCharge,
    DailyPlatformRollup,
    DailyRollup,
    DailyTenantRollup,
    FoldedDay,
    HalfHourlyPlatformRollup,
    HalfHourlyTenantRollup,
    UsageRollup,
)
from billing.pricing.prices import DEMO_RATES
from billing.reports import breakdown, latency, savings, usage
from portal.reporting.periods import Period
from reconciliation import books, report
from reconciliation.models import BookGap
from tenants.database.rls import as_tenant
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
    every: tuple[breakdown.By, ...] = ("tenant", "project", "key", "model", "day")
    for by in every:
        found[by] = breakdown.grouped(PERIOD, None, by)
    own: tuple[breakdown.By, ...] = ("project", "key", "member", "model", "day")
    for by in own:
        found[f"own {by}"] = breakdown.grouped(LOCAL, TENANTS[1], by)
    found |= {
        "own": usage.totals(PERIOD, TENANTS[1]),
        "own series": usage.series_at(PERIOD, TENANTS[1], PERIOD.moments),
        "own local": usage.series_at(LOCAL, TENANTS[1], LOCAL.moments),
        "own latency": latency.by_moment(LOCAL, TENANTS[1], None, LOCAL.moments),
        "bypassed": savings.bypasses(PERIOD, None),
    }
    return found


def test_reports_say_the_same_of_folded_days(rows: list[UsageRow]) -> None:
    before = reported()
    with as_process():
        assert day_folding.fold(NOW) == DAYS
        assert day_folding.fold(NOW) == 0
    assert reported() == before


def test_each_report_reads_the_smallest_roll_ups_that_have_what_it_groups_by(rows: list[UsageRow]) -> None:
    day_folding.fold(NOW)
    own = TENANTS[1]
    reports: dict[type[Model], Callable[[], Any]] = {
        DailyPlatformRollup: lambda: usage.totals(PERIOD, None),
        DailyTenantRollup: lambda: (usage.by_tenant(PERIOD), usage.totals(PERIOD, own)),
        HalfHourlyPlatformRollup: lambda: latency.by_moment(LOCAL, None, None, LOCAL.moments),
        HalfHourlyTenantRollup: lambda: usage.series_at(LOCAL, own, LOCAL.moments),
        DailyRollup: lambda: (breakdown.grouped(PERIOD, None, "key"), breakdown.grouped(PERIOD, own, "project")),
    }
    for table, read in reports.items():
        before, kept = read(), list(table._default_manager.all())
        table._default_manager.all().delete()
        assert read() != before, f"{table.__name__} is not read"
        table._default_manager.bulk_create(kept)
        assert read() == before


def test_a_tenants_reports_read_folded_days_behind_its_row_level_security(rows: list[UsageRow]) -> None:
    day_folding.fold(NOW)
    before = usage.totals(PERIOD, TENANTS[1])
    UsageRollup.objects.filter(starts_at__gte=START + DAY, starts_at__lt=START + 7 * DAY).delete()
    with as_tenant(TENANTS[1]):
        assert usage.totals(PERIOD, TENANTS[1]).requests == before.requests
        assert usage.totals(PERIOD, TENANTS[0]).requests == 0


def test_reports_say_the_same_of_folded_half_hours(rows: list[UsageRow]) -> None:
    now = START + 2 * DAY + timedelta(hours=13, minutes=7)
    day_folding.fold(now)
    last = Period(start=START + DAY + timedelta(hours=14), end=START + 2 * DAY + timedelta(hours=13), preset="24h")

    def report() -> list[Any]:
        return [
            usage.totals(last, None), usage.by_tenant(last), usage.series_at(last, None, last.moments),
            usage.totals(last, TENANTS[1]), latency.by_moment(last, TENANTS[1], None, last.moments),
            breakdown.grouped(last, TENANTS[1], "project"),
        ]  # fmt: skip

    before = report()
    with as_process():
        assert day_folding.fold_half_hours(now) == 26
        assert day_folding.fold_half_hours(now) == 0
        assert report() == before
        store(row(START + 2 * DAY + timedelta(hours=7)))
        late = report()
        assert late[0].requests == before[0].requests + 1
        assert day_folding.fold_half_hours(now) == 1
    assert report() == late
    HalfHourlyTenantRollup.objects.all().delete()
    HalfHourlyPlatformRollup.objects.all().delete()
    assert [each != known for each, known in zip(report(), late, strict=True)] == [True] * 5 + [False]


def test_a_day_that_the_release_before_folded_is_folded_again(rows: list[UsageRow]) -> None:
    day_folding.fold(NOW)
    before = reported()
    FoldedDay.objects.filter(starts_at=START).update(is_summed=False)
    HalfHourlyPlatformRollup.objects.filter(starts_at__lt=START + DAY).delete()
    assert reported() == before
    assert day_folding.fold(NOW) == 1
    assert reported() == before


def test_a_day_is_folded_two_hours_after_its_end(rows: list[UsageRow]) -> None:
    assert day_folding.fold(START + DAY + timedelta(hours=2, seconds=-1)) == 0
    assert day_folding.fold(START + DAY + timedelta(hours=2)) == 1
    assert daily_rollups.folded_within(START - 9 * DAY, NOW) == ([START], [])


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


def test_a_table_that_differs_for_many_tenants_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    many = {new_id(): (1, 1) for _ in range(400)}
    found = books._folded_gaps(
        partitions.month_of(START), {"billing_dailyrollup": ({}, many), "billing_dailytenantrollup": ({}, {})}
    )
    assert len(found) == 400
    [line] = [each.getMessage() for each in caplog.records]
    assert line == "billing_dailyrollup differs from its roll-ups in 2026-03, for 400 tenants"


def test_every_table_of_days_and_half_hours_is_compared(rows: list[UsageRow]) -> None:
    now = START + 3 * DAY + timedelta(hours=1, minutes=50)
    assert (day_folding.fold(now), day_folding.fold_half_hours(now)) == (2, 51)
    end = START + DAYS * DAY
    tables: dict[str, Any] = {
        "billing_dailyrollup": DailyRollup,
        "billing_dailytenantrollup": DailyTenantRollup,
        "billing_dailyplatformrollup": DailyPlatformRollup,
        "billing_halfhourlytenantrollup": HalfHourlyTenantRollup,
        "billing_halfhourlyplatformrollup": HalfHourlyPlatformRollup,
        "billing_dailycharge": DailyCharge,
    }
    before = daily_rollups.compared(START, end)
    assert before.keys() == tables.keys()
    for fine, found in before.values():
        assert fine and fine == found
    for model in tables.values():
        changed = model.objects.order_by("starts_at").last()
        model.objects.filter(id=changed.id).update(completion_tokens=changed.completion_tokens + 1)
    after = daily_rollups.compared(START, end)
    for table, (fine, found) in after.items():
        assert fine == before[table][0]
        assert sum(tokens - fine[whose][1] for whose, (_, tokens) in found.items()) == 1, table
    books.compare(now, START)
    gaps = BookGap.objects.filter(book=BookGap.Book.DAYS)
    assert daily_rollups.ALL in gaps.values_list("tenant_id", flat=True)
    assert "all tenants" in {each.tenant for each in report.books()}
    assert (day_folding.fold(now), day_folding.fold_half_hours(now)) == (2, 51)
    books.compare(now, START)
    assert not gaps.exists()


def test_daily_counts_of_bypasses_are_compared_by_reason() -> None:
    partitions.ensure(START)
    moments = [START + timedelta(hours=hour) for hour in (1, 2, 30)]
    reasons = ("sampled", "off", "sampled")
    rows = [
        msgspec.structs.replace(row(moment), cache_result="bypass", cache_reason=reason)
        for moment, reason in zip(moments, reasons, strict=True)
    ]
    store(*rows)
    assert day_folding.fold(NOW) > 1
    end = START + DAYS * DAY
    assert daily_rollups.compared_bypasses(START, end) == ({"sampled": 2, "off": 1},) * 2
    first = DailyBypassRollup.objects.filter(starts_at=START)
    first.filter(reason="off").update(requests=2)
    books.compare(NOW, START)
    gap = BookGap.objects.get()
    assert (gap.book, gap.usage_tokens, gap.book_tokens) == (BookGap.Book.BYPASSES, 1, 2)
    assert day_folding.fold(NOW) > 1
    books.compare(NOW, START)
    assert not BookGap.objects.exists()
