"""Periods and chart steps follow the reader's clock: they do not slide with the time of the visit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from portal.errors import BadQuery
from portal.reporting import periods

BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
#: In Berlin the clocks went forward on March 30 and go back on October 26.
NOW = datetime(2025, 6, 18, 10, 1, tzinfo=UTC)
IN_SPRING, IN_AUTUMN = datetime(2025, 4, 1, 10, 1, tzinfo=UTC), datetime(2025, 10, 27, 10, 1, tzinfo=UTC)


def local(moments: tuple[datetime, ...], zone: ZoneInfo) -> list[str]:
    """Return local times as text."""
    return [f"{each.astimezone(zone):%m-%d %H:%M}" for each in moments]


@pytest.mark.parametrize("now", [NOW, IN_SPRING, IN_AUTUMN])
@pytest.mark.parametrize("zone", [periods.UTC_ZONE, BERLIN, KOLKATA])
@pytest.mark.parametrize(("preset", "days"), [("30d", 30), ("90d", 90)])
def test_each_bar_of_a_month_is_a_day_of_the_reader(now: datetime, zone: ZoneInfo, preset: str, days: int) -> None:
    moments = periods.parse({"period": preset}, now, zone=zone).moments
    assert len(moments) == days
    assert {each[6:] for each in local(moments, zone)} == {"00:00"}
    assert moments[-1].astimezone(zone).date() == now.astimezone(zone).date()


@pytest.mark.parametrize("now", [NOW, IN_SPRING, IN_AUTUMN])
@pytest.mark.parametrize("zone", [periods.UTC_ZONE, BERLIN, KOLKATA])
def test_a_week_begins_at_midnight_and_has_a_bar_at_each_midnight(now: datetime, zone: ZoneInfo) -> None:
    moments = periods.parse({"period": "7d"}, now, zone=zone).moments
    midnights = [each for each in local(moments, zone) if each.endswith("00:00")]
    assert (len(midnights), midnights[0]) == (7, local(moments, zone)[0])
    assert list(moments) == sorted(set(moments))


@pytest.mark.parametrize("preset", ["24h", "7d", "30d"])
@pytest.mark.parametrize("zone", [BERLIN, KOLKATA])
def test_steps_stay_where_they_are_as_time_passes(preset: str, zone: ZoneInfo) -> None:
    first = periods.parse({"period": preset}, NOW, zone=zone).moments
    for minutes in (1, 7, 16, 29, 44, 59):
        later = periods.parse({"period": preset}, NOW + timedelta(minutes=minutes), zone=zone).moments
        assert later[0] >= first[0]
        assert set(later[:-2]) <= set(first)


def test_an_hour_has_minutes() -> None:
    period = periods.parse({"period": "1h"}, NOW)
    assert period.fine_moments[:2] == (period.start, period.start + timedelta(minutes=1))
    assert period.fine_moments[-1] == period.end - timedelta(minutes=1)
    assert periods.parse({"period": "6h"}, NOW).fine_moments == ()


def test_days_that_have_only_begun_are_compared_with_as_much_of_the_days_before() -> None:
    period = periods.parse({"period": "7d"}, IN_SPRING, zone=BERLIN)
    before = period.previous
    assert local((before.start, before.end), BERLIN) == ["03-19 00:00", "03-25 11:15"]
    assert local((period.start, period.end), BERLIN) == ["03-26 00:00", "04-01 12:15"]


def test_a_custom_period_is_cut_at_the_readers_midnights() -> None:
    query = {"from": "2025-06-01T09:30:00Z", "to": "2025-06-11T00:00:00Z"}
    moments = periods.parse(query, NOW, zone=BERLIN).moments
    assert local(moments[:2], BERLIN) == ["06-01 06:00", "06-01 12:00"]


def test_the_repeated_hour_is_shown_once_for_each_time_it_passes() -> None:
    query = {"from": "2025-10-26T00:00:00Z", "to": "2025-10-26T03:00:00Z"}
    moments = periods.parse(query, NOW, zone=BERLIN).moments
    assert len(moments) == 12
    assert local(moments, BERLIN)[:5] == ["10-26 02:00", "10-26 02:15", "10-26 02:30", "10-26 02:45", "10-26 02:00"]


def test_the_api_names_its_time_zone_and_rejects_an_unknown_one() -> None:
    assert periods.parse({"period": "7d", "timezone": "Asia/Kolkata"}, NOW).start == datetime(
        2025, 6, 11, 18, 30, tzinfo=UTC
    )
    for unknown in ("Mars/Base", "../../etc/passwd", "Europe", "UTC\0"):
        with pytest.raises(BadQuery):
            periods.parse({"timezone": unknown}, NOW)


def test_a_calendar_month_is_that_of_its_tenant_up_to_now() -> None:
    this = periods.parse({"period": "2025-06"}, NOW, zone=KOLKATA, month_zone=BERLIN)
    assert local((this.start, this.end), BERLIN) == ["06-01 00:00", "06-18 12:15"]
    assert (this.label, this.query, this.zone) == ("June 2025", "period=2025-06", BERLIN)
    assert local((this.previous.start, this.previous.end), BERLIN) == ["05-01 00:00", "05-18 12:15"]
    last = periods.parse({"period": "2025-03"}, NOW, month_zone=BERLIN)
    assert local((last.start, last.end), BERLIN) == ["03-01 00:00", "04-01 00:00"]
    assert (len(last.moments), {each[6:] for each in local(last.moments, BERLIN)}) == (31, {"00:00"})
    assert local((last.previous.start, last.previous.end), BERLIN) == ["02-01 00:00", "03-01 00:00"]
    assert periods.months_now(NOW, BERLIN) == ["2025-06", "2025-05"]
    assert periods.parse({"period": "2025-07"}, NOW).end == datetime(2025, 8, 1, tzinfo=UTC)
    for wrong in ("2025-13", "2025-6", "9999-01"):
        with pytest.raises(BadQuery):
            periods.parse({"period": wrong}, NOW)


def test_a_length_is_written_in_minutes_where_hours_would_be_broken() -> None:
    lengths = ((45, "45 min"), (60, "1 h"), (90, "1 h 30 min"), (72 * 60, "3 days"))
    period = periods.around(NOW)
    for minutes, label in lengths:
        assert replace(period, end=period.start + timedelta(minutes=minutes)).label == label
