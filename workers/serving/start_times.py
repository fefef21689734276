"""How long starts took, from each level of warmth; lists and pages show it for placeholders."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import F, Window
from django.db.models.functions import RowNumber

from workers.models import Level, StartTime

#: How many starts count for each revision and level: the newest ones.
NEWEST = 50
#: The level whose times stand for one that was not measured yet: a slot without a zygote saves no part of the start.
STAND_INS = {Level.H0.value: Level.COLD.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSummary:
    """The newest starts of one revision from one level, in seconds from the decision to the first canary token."""

    level: str
    median_seconds: float
    p95_seconds: float
    count: int


Summaries = Mapping[UUID, Sequence[StartSummary]]


def summaries(revisions: Collection[UUID]) -> Summaries:
    """Return the measurements of each revision, coldest level first (one query)."""
    rank = Window(RowNumber(), partition_by=(F("revision_id"), F("level")), order_by=F("id").desc())
    rows = StartTime.objects.filter(revision__in=revisions).annotate(rank=rank).filter(rank__lte=NEWEST)
    measured: dict[tuple[UUID, str], list[float]] = defaultdict(list)
    for revision_id, level, seconds in rows.values_list("revision_id", "level", "seconds"):
        measured[revision_id, level].append(seconds)
    found: dict[UUID, list[StartSummary]] = defaultdict(list)
    for level in Level.values:
        for revision_id in revisions:
            if starts := measured.get((revision_id, level)):
                found[revision_id].append(_summary(level, starts))
    return found


def expected_seconds(summaries: Sequence[StartSummary], level: str) -> float | None:
    """Return the median duration of a start from this level; None while none was measured."""
    medians = {each.level: each.median_seconds for each in summaries}
    return medians.get(level, medians.get(STAND_INS.get(level, level)))


def _summary(level: str, seconds: Sequence[float]) -> StartSummary:
    ordered = sorted(seconds)
    return StartSummary(
        level=level,
        median_seconds=statistics.median(ordered),
        p95_seconds=ordered[-(-len(ordered) * 95 // 100) - 1],
        count=len(ordered),
    )


def start_time_text(seconds: float | None) -> str:
    """Return the measured time as lists and pages show it."""
    if seconds is None:
        return "not measured yet"
    return f"up in {seconds:.0f} s" if seconds >= 1 else "up in less than 1 s"
