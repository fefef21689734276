"""Start times of budget periods."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from tenants.caller_limits import Period


def begins(period: Period, timezone: str, moment: datetime) -> int:
    """Return when the period containing ``moment`` began, Unix seconds: midnight in the zone; a week begins on Monday.

    0 for ``total``, which has one period. ``timezone`` is an IANA name. Raises ZoneInfoNotFoundError.
    """
    if period == "total":
        return 0
    return int(_midnight(period, moment.astimezone(ZoneInfo(timezone))).timestamp())


def next_begins(period: Period, timezone: str, moment: datetime) -> int | None:
    """Return when the period after the one containing ``moment`` begins, Unix seconds; None for ``total``."""
    if period == "total":
        return None
    first = _midnight(period, moment.astimezone(ZoneInfo(timezone)))
    match period:
        case "day":
            later = first + timedelta(days=1)
        case "week":
            later = first + timedelta(days=7)
        case _:
            later = (first + timedelta(days=31)).replace(day=1)
    return int(later.timestamp())


def _midnight(period: Period, local: datetime) -> datetime:
    """Return the start of the period. Arithmetic is on local time, so days of 23 and 25 hours are correct."""
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    match period:
        case "week":
            return midnight - timedelta(days=midnight.weekday())
        case "month":
            return midnight.replace(day=1)
        case _:
            return midnight
