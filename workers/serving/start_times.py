"""How long starts took, from each level of warmth; lists and pages show it for placeholders."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from uuid import UUID

from django.db.models import F, Q, Window
from django.db.models.functions import RowNumber

from workers.models import Level, StartTime

#: How many starts count for each revision and level: the newest ones.
NEWEST = 50
#: The level whose times stand for one that was not measured yet: a slot without a zygote saves no part of the start.
STAND_INS = {Level.H0.value: Level.COLD.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of the parts of one start, or their medians over several; None where unknown."""

    fetch_seconds: float | None = None
    load_seconds: float | None = None
    compile_seconds: float | None = None
    warm_up_seconds: float | None = None

    @property
    def words(self) -> str:
        """Return the known parts as lists and pages show them: ``load 12.3 s, compile 40.1 s``."""
        known = ((name, getattr(self, f"{name}_seconds")) for name in PARTS)
        return ", ".join(f"{name.replace('_', ' ')} {value:.1f} s" for name, value in known if value is not None)


#: The parts of a start, in their order.
PARTS = ("fetch", "load", "compile", "warm_up")
_COLUMNS = tuple(f"{part}_seconds" for part in PARTS)
#: Of a start whose parts are unknown.
UNKNOWN = Parts()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSummary:
    """The newest starts of one revision from one level, in seconds from the decision to the first canary token.

    ``parts`` has the median of each part over those starts that have it.
    """

    level: str
    median_seconds: float
    p95_seconds: float
    count: int
    parts: Parts = UNKNOWN


Summaries = Mapping[UUID, Sequence[StartSummary]]
#: The seconds of one start, and of each of its parts.
_Start = Sequence[float | None]


def summaries(revisions: Collection[UUID], left_out: Collection[tuple[UUID, UUID]] = ()) -> Summaries:
    """Return the measurements of each revision, coldest level first (one query).

    ``left_out``: (revision, pool) of starts that do not count.
    """
    rank = Window(RowNumber(), partition_by=(F("revision_id"), F("level")), order_by=F("id").desc())
    elsewhere = [Q(revision=revision, pool=pool) for revision, pool in left_out]
    counted = StartTime.objects.filter(revision__in=revisions).exclude(reduce(or_, elsewhere, Q(pk=None)))
    rows = counted.annotate(rank=rank).filter(rank__lte=NEWEST)
    measured: dict[tuple[UUID, str], list[_Start]] = defaultdict(list)
    for revision_id, level, *seconds in rows.values_list("revision_id", "level", "seconds", *_COLUMNS):
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


def parts_of(replicas: Collection[UUID]) -> dict[UUID, Parts]:
    """Return the parts of the last start of each replica that has become ready (one query)."""
    rows = StartTime.objects.filter(replica__in=replicas).order_by("replica_id", "-id").distinct("replica_id")
    return {
        replica_id: Parts(**dict(zip(_COLUMNS, seconds, strict=True)))
        for replica_id, *seconds in rows.values_list("replica_id", *_COLUMNS)
    }


def _summary(level: str, starts: Sequence[_Start]) -> StartSummary:
    ordered = sorted(seconds for seconds, *_ in starts if seconds is not None)
    medians = {}
    for place, column in enumerate(_COLUMNS, start=1):
        known = [value for start in starts if (value := start[place]) is not None]
        medians[column] = statistics.median(known) if known else None
    return StartSummary(
        level=level,
        median_seconds=statistics.median(ordered),
        p95_seconds=ordered[-(-len(ordered) * 95 // 100) - 1],
        count=len(ordered),
        parts=Parts(**medians),
    )


def start_time_text(seconds: float | None) -> str:
    """Return the measured time as lists and pages show it."""
    if seconds is None:
        return "not measured yet"
    return f"up in {seconds:.0f} s" if seconds >= 1 else "up in less than 1 s"
