"""The period that a page or report covers, read from the query: ``?period=24h``, or ``?from=…&to=…``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from urllib.parse import urlencode

from portal.errors import BadQuery

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
DEFAULT_PRESET = "24h"
MAX_LENGTH = timedelta(days=400)
#: Times outside are refused as typing errors; request ids can only hold times after 1970.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
#: Points of a chart, at most: bars stay wide enough to hover over, and each rate rests on enough requests.
MAX_CHART_POINTS = 64
#: Points of a series that the API returns, at most.
MAX_API_POINTS = 10_000
STEPS = tuple(timedelta(minutes=minutes) for minutes in (15, 30, 60, 120, 180, 360, 720, 1440, 2 * 1440, 7 * 1440))


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From ``start`` to before ``end``, both UTC and on a quarter of an hour."""

    start: datetime
    end: datetime
    preset: str | None

    @property
    def step(self) -> timedelta:
        """How long one point of a chart lasts."""
        length = self.end - self.start
        return next((step for step in STEPS if length / step <= MAX_CHART_POINTS), STEPS[-1])

    @property
    def previous(self) -> Period:
        """The period of the same length that ends where this one starts."""
        return Period(start=self.start - (self.end - self.start), end=self.start, preset=None)

    @property
    def label(self) -> str:
        """The length in words, such as ``24 h`` or ``7 days``."""
        hours = (self.end - self.start) / timedelta(hours=1)
        if self.preset and self.preset.endswith("d"):
            return f"{self.preset[:-1]} days"
        if self.preset:
            return f"{self.preset[:-1]} h"
        return f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:g} h"

    @property
    def query(self) -> str:
        """The query string of this period."""
        if self.preset:
            return urlencode({"period": self.preset})
        return urlencode({"from": _text(self.start), "to": _text(self.end)})


def parse(query: Mapping[str, str], now: datetime, default: str = DEFAULT_PRESET) -> Period:
    """Read the period from a query. Raises BadQuery."""
    if "from" in query or "to" in query:
        return _custom(query, now)
    preset = query.get("period") or default
    if preset not in PRESETS:
        raise BadQuery("period", preset, f"one of {', '.join(PRESETS)}, or from and to")
    end = _ceiling(now)
    return Period(start=end - PRESETS[preset], end=end, preset=preset)


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
