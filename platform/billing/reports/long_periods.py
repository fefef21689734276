"""Which days of a long period are read from daily roll-ups, and which parts of it from those of quarters of an hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from billing.ledger import daily_rollups
from billing.ledger.daily_rollups import DAY

#: Shorter periods are read from roll-ups of quarters of an hour alone.
SHORTEST = timedelta(days=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A period in two parts: days in UTC, by their start, and what is left, from each start to before its end."""

    days: Sequence[datetime]
    rest: Sequence[tuple[datetime, datetime]]

    def condition(self) -> Q:
        """Return the condition of roll-ups for what is left, which is something."""
        found = Q()
        for start, end in self.rest:
            found |= Q(starts_at__gte=start, starts_at__lt=end)
        return found


def split(start: datetime, end: datetime, moments: Sequence[datetime] = ()) -> Parts:
    """Split a period. A day within which one of these moments lies is in the rest, as one that is not folded."""
    if end - start < SHORTEST:
        return Parts(days=(), rest=((start, end),))
    cut = {day for moment in moments if (day := daily_rollups.day_of(moment)) != moment}
    days = [day for day in daily_rollups.folded(start, end - DAY + timedelta(seconds=1)) if day not in cut]
    rest, at = [], start
    for day in days:
        if day > at:
            rest.append((at, day))
        at = day + DAY
    if at < end:
        rest.append((at, end))
    return Parts(days=days, rest=rest)
