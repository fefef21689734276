"""What the placeholders of each pool cost on each day, and what they saved: from rows alone, so no restart matters.

Times are seconds, days are those of UTC. How each figure is computed is in ``docs/operations/scaling.md``.
"""

from __future__ import annotations

import datetime as dt
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.db import connection
from django.db.models import Exists, OuterRef, Q

from workers.models import Level, Placeholder, Pool, SlotLease, SlotWait, StartTime
from workers.serving.start_times import NEWEST

HOUR_SECONDS = 3600
#: The longest period that is computed at once.
MOST_DAYS = 400
_Span = tuple[dt.datetime, dt.datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderCost:
    """One pool on one day. ``slot_seconds`` were held by placeholders; in ``waited_seconds`` of them a replica waited.

    ``saved_seconds`` is how much sooner ``promotions`` served than cold starts; ``unmeasured`` of them are not in it,
    because no cold start of their revision was measured. ``cost_pico`` is None if nobody has said what a slot costs.
    """

    day: dt.date
    pool: str
    slot_seconds: float
    waited_seconds: float
    memory_byte_seconds: float
    promotions: int
    unmeasured: int
    saved_seconds: float
    cost_pico: int | None

    @property
    def slot_hours(self) -> float:
        """Return the hours of slots held."""
        return self.slot_seconds / HOUR_SECONDS

    @property
    def waited_hours(self) -> float:
        """Return the hours of them in which a replica waited."""
        return self.waited_seconds / HOUR_SECONDS

    @property
    def memory_gib_hours(self) -> float:
        """Return the host memory of their processes, times the hours that they had it."""
        return self.memory_byte_seconds / HOUR_SECONDS / 2**30


@dataclass(slots=True)
class _Sums:
    slot: float = 0.0
    waited: float = 0.0
    memory: float = 0.0
    promotions: int = 0
    unmeasured: int = 0
    saved: float = 0.0


@dataclass(frozen=True, slots=True)
class _Days:
    """The sums of each day and pool, for a period that ends with the present moment at the latest."""

    start: dt.datetime
    end: dt.datetime
    sums: dict[tuple[dt.date, UUID], _Sums] = field(default_factory=lambda: defaultdict(_Sums))

    def within(self, span: _Span) -> Iterator[tuple[dt.date, float]]:
        """Yield the days of the period that a span touches, and its seconds on each."""
        start, end = max(self.start, span[0]), min(self.end, span[1])
        while start < end:
            midnight = dt.datetime.combine(start.date() + dt.timedelta(days=1), dt.time(), dt.UTC)
            yield start.date(), (min(end, midnight) - start).total_seconds()
            start = midnight


def by_day(first: dt.date, last: dt.date, pool: str | None = None) -> tuple[PlaceholderCost, ...]:
    """Return the days from ``first`` to ``last``, newest first, of every pool that had placeholders then."""
    first = max(first, last - dt.timedelta(days=MOST_DAYS - 1))
    days = _Days(
        dt.datetime.combine(first, dt.time(), dt.UTC),
        min(_now(), dt.datetime.combine(last + dt.timedelta(days=1), dt.time(), dt.UTC)),
    )
    of_pool = Q() if pool is None else Q(pool__name=pool)
    pools = {row.id: row for row in Pool.objects.filter(Q() if pool is None else Q(name=pool))}
    waits = _waits(days, of_pool)
    _add_leases(days, pools, waits)
    _add_promotions(days, of_pool)
    found = sorted(days.sums.items(), key=lambda each: (-each[0][0].toordinal(), pools[each[0][1]].name))
    return tuple(_cost(day, pools[pool_id], sums) for (day, pool_id), sums in found)


def today() -> tuple[PlaceholderCost, ...]:
    """Return the present day until now."""
    day = _now().date()
    return by_day(day, day)


def newest(days: int, pool: str | None = None) -> tuple[PlaceholderCost, ...]:
    """Return so many days, the present one included."""
    last = _now().date()
    return by_day(last - dt.timedelta(days=days - 1), last, pool)


def _add_leases(days: _Days, pools: Mapping[UUID, Pool], waits: Mapping[UUID, Sequence[_Span]]) -> None:
    counted: set[UUID] = set()
    for lease in _leases(days, pools):
        assert lease.placeholder is not None
        pool_id = lease.slot.node.pool_id
        span = (lease.acquired_at, lease.released_at or days.end)
        for day, seconds in days.within(span):
            days.sums[day, pool_id].slot += seconds
        for waited in (*_common(span, waits.get(pool_id, ())), *_freed(lease, days.end)):
            for day, seconds in days.within(waited):
                days.sums[day, pool_id].waited += seconds
        held = lease.placeholder
        if held.memory_bytes and held.id not in counted:
            counted.add(held.id)
            warm_at = span[0] + dt.timedelta(seconds=held.warm_seconds or 0.0)
            for day, seconds in days.within((warm_at, span[1])):
                days.sums[day, pool_id].memory += seconds * held.memory_bytes


def _leases(days: _Days, pools: Mapping[UUID, Pool]) -> Iterable[SlotLease]:
    """Return the leases of placeholders in the period; ``to_replica``: the slot went to a replica when it ended."""
    taken = SlotLease.objects.filter(
        slot=OuterRef("slot"), kind=SlotLease.Kind.REPLICA, acquired_at=OuterRef("released_at")
    )
    rows = SlotLease.objects.filter(
        Q(released_at=None) | Q(released_at__gte=days.start),
        kind=SlotLease.Kind.PLACEHOLDER,
        acquired_at__lt=days.end,
        slot__node__pool__in=pools,
    )
    return rows.annotate(to_replica=Exists(taken)).select_related("slot__node", "placeholder").order_by("id")


def _freed(lease: SlotLease, now: dt.datetime) -> Iterator[_Span]:
    """Yield the time in which a replica had the slot, but the process of the evicted placeholder still used it."""
    held = lease.placeholder
    assert held is not None
    states = {Placeholder.State.EVICTING: now, Placeholder.State.EVICTED: held.state_since}
    if lease.released_at is not None and getattr(lease, "to_replica") and held.state in states:  # noqa: B009
        yield lease.released_at, states[Placeholder.State(held.state)]


def _waits(days: _Days, of_pool: Q) -> dict[UUID, list[_Span]]:
    """Return when any deployment waited for slots of a pool, by pool: spans that do not overlap, in order."""
    found: dict[UUID, list[_Span]] = defaultdict(list)
    rows = SlotWait.objects.filter(of_pool, Q(ended_at=None) | Q(ended_at__gte=days.start), began_at__lt=days.end)
    for pool_id, began_at, ended_at in rows.order_by("began_at").values_list("pool_id", "began_at", "ended_at"):
        spans, until = found[pool_id], ended_at or days.end
        if spans and began_at <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], until))
        else:
            spans.append((began_at, until))
    return found


def _common(span: _Span, others: Sequence[_Span]) -> Iterator[_Span]:
    for began, ended in others:
        if began < span[1] and span[0] < ended:
            yield max(began, span[0]), min(ended, span[1])


def _add_promotions(days: _Days, of_pool: Q) -> None:
    starts = StartTime.objects.filter(of_pool, created_at__gte=days.start, created_at__lt=days.end, level=Level.H2)
    promoted = list(starts.values_list("revision_id", "pool_id", "seconds", "created_at").order_by("id"))
    cold = _cold_starts({revision_id for revision_id, *_ in promoted})
    for revision_id, pool_id, seconds, at in promoted:
        sums = days.sums[at.date(), pool_id]
        sums.promotions += 1
        expected = cold[revision_id, pool_id].before(at) or cold[revision_id, None].before(at)
        if expected is None:
            sums.unmeasured += 1
        else:
            sums.saved += expected - seconds


@dataclass(frozen=True, slots=True)
class _ColdStarts:
    """Cold starts in order of time."""

    at: list[dt.datetime] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def before(self, moment: dt.datetime) -> float | None:
        """Return the median of the newest ones before the moment; of the first one, if all came later."""
        count = bisect_right(self.at, moment)
        found = self.seconds[max(0, count - NEWEST) : count] or self.seconds[:1]
        return statistics.median(found) if found else None


def _cold_starts(revisions: Iterable[UUID]) -> Mapping[tuple[UUID, UUID | None], _ColdStarts]:
    """Return the starts without a warm process by revision and pool, and of the revision in all pools (None)."""
    found: dict[tuple[UUID, UUID | None], _ColdStarts] = defaultdict(_ColdStarts)
    rows = StartTime.objects.filter(revision__in=revisions).exclude(level=Level.H2).order_by("created_at")
    for revision_id, pool_id, seconds, at in rows.values_list("revision_id", "pool_id", "seconds", "created_at"):
        for key in (pool_id, None):
            found[revision_id, key].at.append(at)
            found[revision_id, key].seconds.append(seconds)
    return found


def _cost(day: dt.date, pool: Pool, sums: _Sums) -> PlaceholderCost:
    price = pool.slot_hour_pico
    return PlaceholderCost(
        day=day,
        pool=pool.name,
        slot_seconds=sums.slot,
        waited_seconds=sums.waited,
        memory_byte_seconds=sums.memory,
        promotions=sums.promotions,
        unmeasured=sums.unmeasured,
        saved_seconds=sums.saved,
        cost_pico=None if price is None else round(price * sums.slot / HOUR_SECONDS),
    )


def _now() -> dt.datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: dt.datetime = cursor.fetchone()[0]
    return now.astimezone(dt.UTC)
