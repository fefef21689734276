"""Which days and half-hours of a period are read from their roll-ups, and what from those of quarters of an hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from billing.ledger import daily_rollups
from billing.ledger.daily_rollups import DAY, HALF_HOUR

#: Shorter periods are read from roll-ups of quarters of an hour alone.
SHORTEST = timedelta(hours=4)
Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A period in parts, each of spans from a start to before an end: whole days, half-hours, and what is left."""

    days: Sequence[Span] = ()
    half_hours: Sequence[Span] = ()
    rest: Sequence[Span] = ()


def within(spans: Sequence[Span]) -> Q:
    """Return the condition of roll-ups in any of these, of which there is one at least."""
    found = Q()
    for start, end in spans:
        found |= Q(starts_at__gte=start, starts_at__lt=end)
    return found


def split(
    start: datetime, end: datetime, moments: Sequence[datetime] = (), *, has_keys: bool = False, by_day: bool = True
) -> Parts:
    """Split a period. What is not folded is in the rest, and days and half-hours within which a moment lies.

    ``has_keys``: roll-ups of half-hours lack what is read. Not ``by_day``: days are read by the half-hour too, so that
    only a moment within one matters.
    """
    if end - start < SHORTEST:
        return Parts(rest=((start, end),))
    cut = {half for moment in moments if (half := daily_rollups.half_hour_of(moment)) != moment}
    cut_days = {daily_rollups.day_of(moment) for moment in (filter(is_within_day, moments) if by_day else cut)}
    folded, halves = daily_rollups.folded_within(start, end)
    whole = {day for day in folded if start <= day and day + DAY <= end} - cut_days
    days = _joined([day for day in folded if day in whole], DAY)
    rest = _between(start, end, days)
    if has_keys or not rest:
        return Parts(days=days, rest=rest)
    of_days = (day + number * HALF_HOUR for day in folded if day not in whole for number in range(DAY // HALF_HOUR))
    known = {*halves, *(half for half in of_days if start <= half and half + HALF_HOUR <= end)}
    half_hours = _joined(
        sorted(half for half in known if half not in cut and daily_rollups.day_of(half) not in whole), HALF_HOUR
    )
    return Parts(days=days, half_hours=half_hours, rest=_between(start, end, sorted([*days, *half_hours])))


def is_within_day(moment: datetime) -> bool:
    """Return whether a moment lies within a day in UTC."""
    return daily_rollups.day_of(moment) != moment


def _joined(starts: Sequence[datetime], length: timedelta) -> list[Span]:
    """Return the spans of steps of this length, in order, those that follow each other as one."""
    found: list[Span] = []
    for start in starts:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + length)
        else:
            found.append((start, start + length))
    return found


def _between(start: datetime, end: datetime, spans: Sequence[Span]) -> list[Span]:
    """Return what of a period is in none of these spans, which are in order and share nothing."""
    edges = [start, *(moment for span in spans for moment in span), end]
    return [(begin, behind) for begin, behind in zip(edges[::2], edges[1::2], strict=True) if begin < behind]
