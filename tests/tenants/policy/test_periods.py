"""Starts and ends of budget periods, including days of 23 and 25 hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.caller_limits import Period
from tenants.policy import periods

BERLIN = "Europe/Berlin"
PERIODS: tuple[Period, ...] = ("day", "week", "month")


@pytest.mark.parametrize(
    ("period", "begins", "ends"),
    [
        ("day", "2026-03-29", "2026-03-30"),  # 23 hours
        ("week", "2026-03-23", "2026-03-30"),
        ("month", "2026-03-01", "2026-04-01"),
    ],
)
def test_a_period_runs_from_midnight_to_midnight_of_its_zone(period: Period, begins: str, ends: str) -> None:
    moment = datetime(2026, 3, 29, 12, tzinfo=UTC)
    first, later = (datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(BERLIN)) for day in (begins, ends))
    assert periods.begins(period, BERLIN, moment) == int(first.timestamp())
    assert periods.next_begins(period, BERLIN, moment) == int(later.timestamp())


def test_a_total_has_one_period() -> None:
    moment = datetime(2026, 3, 29, tzinfo=UTC)
    assert (periods.begins("total", BERLIN, moment), periods.next_begins("total", BERLIN, moment)) == (0, None)


@given(
    period=st.sampled_from(PERIODS),
    zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]),
    moment=st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
)
def test_periods_follow_each_other_without_a_gap(period: Period, zone: str, moment: datetime) -> None:
    first = periods.begins(period, zone, moment)
    later = periods.next_begins(period, zone, moment)
    assert later is not None
    assert first <= moment.timestamp() < later
    last_second = datetime.fromtimestamp(later, UTC) - timedelta(seconds=1)
    assert periods.begins(period, zone, last_second) == first
    assert periods.begins(period, zone, datetime.fromtimestamp(later, UTC)) == later
