"""The period that a page or report covers: ``?period=24h``, a calendar month ``?period=2026-10``, or ``?from=…&to=…``.

Presets and chart steps are aligned to the reader's clock: days begin at midnight in the reader's time zone, hours at
full hours, so that a step shows the same requests whenever the page is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import count, takewhile
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.utils.formats import date_format
from django.utils.translation import gettext

from portal.errors import BadQuery

UTC_ZONE = ZoneInfo("UTC")
_MONTH = re.compile(r"\d{4}-\d{2}", re.ASCII)
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
#: Roll-ups cover 15 minutes, so every period begins and ends on a quarter of an hour.
GRAIN = timedelta(minutes=15)
PRESETS: dict[str, timedelta] = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
}
#: How long one point of a preset's chart lasts.
PRESET_STEPS: dict[str, timedelta] = {
    "1h": GRAIN,
    "6h": GRAIN,
    "24h": timedelta(minutes=30),
    "7d": timedelta(hours=3),
    "30d": timedelta(days=1),
    "90d": timedelta(days=1),
}
DAY = timedelta(days=1)
#: Periods up to this length can be charted minute by minute, from single requests.
FINE_LENGTH = timedelta(minutes=75)
FINE_STEP = timedelta(minutes=1)
#: From this step on, steps follow local clocks when these change; shorter ones would be doubled in the repeated hour.
LOCAL_STEP = timedelta(hours=2)
DEFAULT_PRESET = "24h"
#: The parameters of an address that choose a period.
PARAMETERS = ("period", "from", "to")
MAX_LENGTH = timedelta(days=400)
#: Times outside are refused as typing errors; request ids can only hold times after 1970.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
#: Points of a custom period's chart, at most: bars stay wide enough to hover over, and each rate rests on enough
#: requests.
MAX_CHART_POINTS = 64
#: Points of a series that the API returns, at most.
MAX_API_POINTS = 10_000
STEPS = tuple(timedelta(minutes=minutes) for minutes in (15, 30, 60, 120, 180, 360, 720, 1440, 2 * 1440, 7 * 1440))


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From ``start`` to before ``end``, both UTC and on a quarter of an hour.

    ``preset`` is the word that chooses it, None for one between two times; ``month`` the first day of a calendar month.
    ``zone`` is the reader's; that of a month is its tenant's, so that it is the month of statements and invoices.
    """

    start: datetime
    end: datetime
    preset: str | None
    zone: ZoneInfo = UTC_ZONE
    month: date | None = None

    @property
    def step(self) -> timedelta:
        """How long one point of a chart lasts."""
        if self.month:
            return DAY
        if self.preset:
            return PRESET_STEPS[self.preset]
        length = self.end - self.start
        return next((step for step in STEPS if length / step <= MAX_CHART_POINTS), STEPS[-1])

    @property
    def moments(self) -> tuple[datetime, ...]:
        """When each point of a chart begins, UTC; the first may begin before the period."""
        step = self.step
        first = aligned(self.start, step, self.zone)
        if step < LOCAL_STEP:
            return tuple(self._until_end(lambda number: first + number * step))
        local = first.astimezone(self.zone).replace(tzinfo=None)
        return tuple(self._until_end(lambda number: (local + number * step).replace(tzinfo=self.zone).astimezone(UTC)))

    @property
    def fine_moments(self) -> tuple[datetime, ...]:
        """When each minute begins; empty for a period that is too long."""
        if self.end - self.start > FINE_LENGTH:
            return ()
        return tuple(self._until_end(lambda number: self.start + number * FINE_STEP))

    @property
    def previous(self) -> Period:
        """The period of the same length before: a preset's length earlier, else the one that ends at this start."""
        if self.month:
            return self._month_before(self.month)
        if not self.preset:
            return replace(self, start=self.start - (self.end - self.start), end=self.start)
        days = PRESETS[self.preset]
        return replace(self, start=_earlier(self.start, days, self.zone), end=self.end - days, preset=None)

    def _month_before(self, month: date) -> Period:
        """Return the month before; of a month that has only begun, as much of the one before."""
        before = past_months(month, 2)[1]
        start = _midnight(before, self.zone)
        is_over = self.end == _midnight(_next_month(month), self.zone)
        end = self.start if is_over else min(self.start, start + (self.end - self.start))
        return replace(self, start=start, end=end, preset=None, month=None)

    def _until_end(self, moment: Callable[[int], datetime]) -> Iterator[datetime]:
        return takewhile(lambda each: each < self.end, map(moment, count()))

    @property
    def label(self) -> str:
        """The length in words, such as ``24 h`` or ``7 days``; of a month, its name."""
        if self.month:
            return date_format(self.month, "F Y")
        if self.preset:
            length, in_days = self.preset[:-1], self.preset.endswith("d")
            return (gettext("%(length)s days") if in_days else gettext("%(length)s h")) % {"length": length}
        hours, minutes = divmod(round((self.end - self.start) / timedelta(minutes=1)), 60)
        if hours >= 48:
            return gettext("%(length)s days") % {"length": round(hours / 24)}
        if not minutes:
            return gettext("%(length)s h") % {"length": hours}
        if not hours:
            return gettext("%(minutes)s min") % {"minutes": minutes}
        return gettext("%(hours)s h %(minutes)s min") % {"hours": hours, "minutes": minutes}

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters that choose this period, as a form keeps them."""
        return {"period": self.preset} if self.preset else {"from": _text(self.start), "to": _text(self.end)}

    @property
    def query(self) -> str:
        """The query string of this period."""
        return urlencode(self.parameters)


def parse(
    query: Mapping[str, str],
    now: datetime,
    default: str = DEFAULT_PRESET,
    zone: ZoneInfo | None = None,
    month_zone: ZoneInfo | None = None,
) -> Period:
    """Read the period from a query; its parameter ``timezone`` counts where no zone is given. Raises BadQuery.

    A calendar month begins at midnight of ``month_zone`` where that is given.
    """
    zone = zone or _zone(query)
    if "from" in query or "to" in query:
        return replace(_custom(query, now), zone=zone)
    preset = query.get("period") or default
    if _MONTH.fullmatch(preset):
        return _calendar_month(preset, now, month_zone or zone)
    if preset not in PRESETS:
        raise BadQuery("period", preset, f"one of {', '.join(PRESETS)}, a month as YYYY-MM, or from and to")
    end, length = _ceiling(now), PRESETS[preset]
    if length > DAY:
        start = _earlier(aligned(now, DAY, zone), length - DAY, zone)
    else:
        start = aligned(end - length, PRESET_STEPS[preset], zone)
    return Period(start=start, end=end, preset=preset, zone=zone)


def around(moment: datetime) -> Period:
    """Return the quarter of an hour of a moment, and the ones before and after it."""
    start = _floor(moment)
    return Period(start=start - GRAIN, end=start + 2 * GRAIN, preset=None)


def zone_named(name: str | None) -> ZoneInfo | None:
    """Return the time zone with an IANA name such as Europe/Berlin; None if there is none."""
    if name is None or not _ZONE_NAME.fullmatch(name):
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def aligned(moment: datetime, step: timedelta, zone: ZoneInfo) -> datetime:
    """Return the last time at or before a moment at which a step begins, counted from midnight in the zone; UTC."""
    local = moment.astimezone(zone).replace(tzinfo=None)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    found = (midnight + (local - midnight) // step * step).replace(tzinfo=zone)
    repeated = found.replace(fold=local.fold).astimezone(UTC)
    return repeated if repeated <= moment else found.astimezone(UTC)


def parse_month(text: str | None, now: datetime) -> date:
    """Return the first day of ``YYYY-MM``; without text, of this month. Raises BadQuery."""
    if not text:
        return now.date().replace(day=1)
    try:
        month = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        month = LATEST
    if not EARLIEST <= month < LATEST:
        raise BadQuery("month", text, "a month of this century or the next, as YYYY-MM")
    return month.date()


def months_now(now: datetime, zone: ZoneInfo) -> list[str]:
    """Return this calendar month of the zone and the last one, as ``period`` names them."""
    return [f"{month:%Y-%m}" for month in past_months(now.astimezone(zone).date(), 2)]


def past_months(today: date, count: int) -> list[date]:
    """Return the first days of this month and of those before it, newest first."""
    months = [today.replace(day=1)]
    while len(months) < count:
        months.append((months[-1] - timedelta(days=1)).replace(day=1))
    return months


def _calendar_month(text: str, now: datetime, zone: ZoneInfo) -> Period:
    """Return a month, up to now if it is this one."""
    try:
        month = parse_month(text, now)
    except BadQuery as error:
        raise BadQuery("period", text, error.allowed) from None
    start, end = _midnight(month, zone), _midnight(_next_month(month), zone)
    if start <= now < end:
        end = min(end, _ceiling(max(now, start + GRAIN)))
    return Period(start=start, end=end, preset=text, zone=zone, month=month)


def _next_month(month: date) -> date:
    return (month + timedelta(days=31)).replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def _zone(query: Mapping[str, str]) -> ZoneInfo:
    name = query.get("timezone")
    if not name:
        return UTC_ZONE
    zone = zone_named(name)
    if zone is None:
        raise BadQuery("timezone", name, "a time zone of the IANA database, such as Europe/Berlin")
    return zone


def _earlier(moment: datetime, length: timedelta, zone: ZoneInfo) -> datetime:
    """Return the same local time whole days, or a shorter length, earlier."""
    if length % DAY:
        return moment - length
    return (moment.astimezone(zone).replace(tzinfo=None) - length).replace(tzinfo=zone).astimezone(UTC)


def _custom(query: Mapping[str, str], now: datetime) -> Period:
    start = _floor(_moment(query, "from") if "from" in query else now - PRESETS[DEFAULT_PRESET])
    end = _ceiling(_moment(query, "to") if "to" in query else now)
    if not start < end <= start + MAX_LENGTH:
        raise BadQuery("from", query.get("from", ""), f"before 'to', and at most {MAX_LENGTH.days} days before it")
    return Period(start=start, end=end, preset=None)


def _moment(query: Mapping[str, str], name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(query[name])
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        moment = LATEST
    if not EARLIEST <= moment < LATEST:
        raise BadQuery(name, query[name], "an ISO 8601 time of this century or the next, such as 2025-06-01T12:00:00Z")
    return moment


def _floor(moment: datetime) -> datetime:
    return moment - (moment - EARLIEST) % GRAIN


def _ceiling(moment: datetime) -> datetime:
    below = _floor(moment)
    return below if below == moment else below + GRAIN


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%MZ")
