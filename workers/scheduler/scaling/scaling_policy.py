"""Decide how many replicas a deployment should have, from facts alone: no database, no clock.

The same facts give the same decision, and each decision is stored with its facts. The formulas, with an example, are
in ``docs/operations/scaling.md``.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal
from uuid import UUID

import msgspec

from workers.scheduler.scaling.scaling_signals import NONE, SILENT, EngineFacts, Objectives, signals
from workers.serving.gateway_load import DeploymentLoad, split_regions

Action = Literal["up", "down", "wake", "prepare", "release"]

#: The next pool is prepared when this one will be full in less time than this many starts take in the next one.
LEAD = 1.5
#: Growth is measured against an earlier load of an age between these, in seconds; an older one is replaced.
SAMPLE_LEAST, SAMPLE_MOST = 1.0, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """One pool of a deployment. ``replicas`` are wanted there; ``starting`` of them start for the first time.

    ``room`` is how many more fit there, on free slots and on those of placeholders. ``start_seconds`` is the measured
    time of a start there at its present warmth; None before the first one. ``not_needed_since`` is when the pool before
    it fell below its low water.
    """

    id: UUID
    name: str
    region: str = ""
    replicas: int
    starting: int
    room: int
    high_water: float
    low_water: float
    prepared: int = 0
    start_seconds: float | None = None
    not_needed_since: dt.datetime | None = None
    #: The target load of a replica that was learned there; None: the deployment's.
    target_tokens: int | None = None

    @property
    def fits(self) -> int:
        """How many replicas the pool can have."""
        return self.replicas + self.room


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What one decision passes to the next.

    Since when the load has called for more replicas, or for fewer, with the largest number wanted in that time; and an
    earlier load, to measure growth.
    """

    more_wanted_since: dt.datetime | None = None
    less_wanted_since: dt.datetime | None = None
    less_wanted_peak: int = 0
    sampled_tokens: int | None = None
    sampled_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One deployment at one moment, by the database's clock. ``load`` is None if no gateway reports.

    ``pools`` are in the order in which they are filled. ``busy_at`` is the time of the last request, because a short
    one can begin and end between two reports of load.
    """

    now: dt.datetime
    desired: int
    min_replicas: int
    max_replicas: int
    target_tokens: int
    up_delay_seconds: float
    down_delay_seconds: float
    load: DeploymentLoad | None
    pools: tuple[PoolFacts, ...]
    memory: Memory
    busy_at: dt.datetime | None = None
    #: What its engines report, and the signals of these that scaling follows.
    engines: EngineFacts = SILENT
    objectives: Objectives = NONE
    #: Those of the minimum that tenants have reserved.
    reserved_replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of the desired replicas, with its reason. ``pool_id`` is the pool prepared or released."""

    action: Action
    before: int
    after: int
    reason: str
    pool_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The desired replicas in total, those prepared by pool, the steps to both, and the next decision's memory."""

    desired: int
    prepared: Mapping[UUID, int]
    not_needed_since: Mapping[UUID, dt.datetime | None]
    memory: Memory
    steps: tuple[Step, ...]


def decide(facts: Facts) -> Decision:
    """Return the desired number of replicas, between the minimum and the maximum, and the steps to it.

    The number rises once more replicas were wanted for the whole up delay while none was starting. It falls once fewer
    were wanted for the whole down delay, to the largest number wanted in that time. From zero it rises at once. A
    deployment whose minimum equals its maximum keeps its number. Without any report of load nothing changes. Below what
    is reserved the number rises at once, whatever the load.
    """
    if facts.desired < facts.reserved_replicas:
        return _reserve(facts)
    if facts.min_replicas == facts.max_replicas:
        return _release_all(facts)
    if facts.load is None:
        kept = {pool.id: pool.prepared for pool in facts.pools}
        return _decision(facts, facts.desired, kept, Memory(), ())
    prepared = {pool.id: pool.prepared for pool in facts.pools}
    idle_since: dict[UUID, dt.datetime | None] = {}
    steps: list[Step] = []
    desired = facts.desired
    needed = needed_in_regions(facts, facts.load)
    for number, pool in enumerate(facts.pools):
        if needed[pool.id]:
            steps += _prepare_for_region(facts, pool, needed[pool.id], desired, is_first=number == 0)
            desired = steps[-1].after if steps else desired
            prepared[pool.id] = max(pool.prepared, needed[pool.id] if number else 0)
    for outlook in _outlooks(facts, facts.load):
        pool = outlook.following
        if needed[pool.id]:
            continue
        idle_since[pool.id] = _idle_since(facts, outlook)
        step = _prepare(facts, outlook, desired) or _release(facts, outlook, desired, prepared, idle_since[pool.id])
        if step is not None:
            prepared[pool.id] = 1 if step.action == "prepare" else 0
            idle_since[pool.id] = None
            desired = step.after
            steps.append(step)
    desired, memory, step = _follow_load(facts, facts.load, desired, prepared)
    if step is not None:
        steps.append(step)
    return _decision(facts, desired, prepared, memory, tuple(steps), idle_since)


def inputs_of(facts: Facts) -> dict[str, Any]:
    """Return the facts as JSON values, to be stored with a decision."""
    inputs: dict[str, Any] = msgspec.to_builtins(facts)
    return inputs


def wanted_replicas(facts: Facts, load: DeploymentLoad) -> int:
    """Return how many replicas are needed: one per target of tokens, at least one while there is a request.

    More if a signal of the engines calls for more; without any request it calls for none.
    """
    tokens = load.in_flight_tokens + load.queued_tokens
    anything = tokens + load.in_flight_requests + load.queued_requests > 0
    wanted = max(_for_tokens(facts, tokens), int(anything))
    if anything:
        wanted = max([wanted, *(each.wanted for each in signals(facts.objectives, facts.engines))])
    return max(facts.min_replicas, min(facts.max_replicas, wanted))


def target_of(facts: Facts, pool: PoolFacts) -> int:
    """Return how many tokens in flight a replica in the pool should have."""
    return facts.target_tokens if pool.target_tokens is None else pool.target_tokens


def needed_in_regions(facts: Facts, load: DeploymentLoad) -> dict[UUID, int]:
    """Return how many replicas each pool needs for requests that may run only in some regions.

    The pools of their regions are filled in order. A pool's replicas count for every set of regions that it belongs to.
    While one starts there for the first time no more are needed: the queue shows how long that takes, not the demand.
    """
    needed = {pool.id: 0 for pool in facts.pools}
    for names, tokens in sorted(load.regional_tokens.items()):
        regions = split_regions(names)
        rest = tokens
        pools = [pool for pool in facts.pools if pool.region in regions]
        starting = any(pool.starting for pool in pools)
        for pool in pools:
            target = target_of(facts, pool)
            here = min(math.ceil(rest / target), pool.replicas if starting else pool.fits)
            needed[pool.id] = max(needed[pool.id], here)
            rest = max(0, rest - here * target)
    return needed


def with_prepared(facts: Facts, wanted: int, prepared: Mapping[UUID, int]) -> int:
    """Return the total number of replicas if each pool has at least what is prepared there.

    What requests need in their regions comes first, then pools are filled in order. A replica that is prepared beyond
    that serves overflow if there is any, and is an extra one if not.
    """
    needed = dict.fromkeys(prepared, 0) if facts.load is None else needed_in_regions(facts, facts.load)
    rest, total = max(0, wanted - sum(needed.values())), 0
    for pool in facts.pools:
        more = min(rest, pool.fits - needed[pool.id])
        rest -= more
        total += max(needed[pool.id] + more, prepared[pool.id])
    return min(facts.max_replicas, total + rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outlook:
    """How full a pool is and when it will be full; ``following`` is the next pool.

    ``utilisation`` is None for a pool without capacity. ``may_overflow`` is False if the maximum fits into this pool
    and those before it.
    """

    pool: PoolFacts
    following: PoolFacts
    utilisation: float | None
    seconds_left: float | None
    may_overflow: bool
    before: int


def _outlooks(facts: Facts, load: DeploymentLoad) -> Iterator[_Outlook]:
    tokens = load.in_flight_tokens + load.queued_tokens
    growth = _growth(facts, tokens)
    fits_before = capacity_before = 0
    for pool, following in pairwise(facts.pools):
        capacity = pool.fits * target_of(facts, pool)
        here = max(0, tokens - capacity_before)
        fits_before += pool.fits
        capacity_before += capacity
        left = (capacity - here) / growth if growth is not None and growth > 0 and here > 0 else None
        yield _Outlook(
            pool=pool,
            following=following,
            utilisation=here / capacity if capacity else None,
            seconds_left=left,
            may_overflow=facts.max_replicas > fits_before,
            before=fits_before,
        )


def _growth(facts: Facts, tokens: int) -> float | None:
    """Return how fast the load grows, in tokens per second; None while that is unknown."""
    memory = facts.memory
    if memory.sampled_at is None or memory.sampled_tokens is None:
        return None
    age = (facts.now - memory.sampled_at).total_seconds()
    return (tokens - memory.sampled_tokens) / age if age >= SAMPLE_LEAST else None


def _prepare(facts: Facts, outlook: _Outlook, desired: int) -> Step | None:
    """Return the step that gives the next pool its first replica before this one is full, if it is time for that.

    The time until the pool is full counts only above its low water: below it, a prepared pool would be released again.
    """
    pool, following, utilisation = outlook.pool, outlook.following, outlook.utilisation
    if following.prepared or not following.fits or not outlook.may_overflow or utilisation is None or desired == 0:
        return None
    full = f"pool {pool.name} is {utilisation:.0%} full"
    start, left = following.start_seconds, outlook.seconds_left
    if utilisation >= pool.high_water:
        why = f"{full}, high water is {pool.high_water:.0%}"
    elif utilisation >= pool.low_water and start is not None and left is not None and left < LEAD * start:
        why = f"{full} and full in {left:.1f} s at this pace, while a start in {following.name} takes {start:.1f} s"
    else:
        return None
    overflow = min(following.fits, max(0, desired - outlook.before))
    missing = max(0, 1 - max(following.replicas, overflow))
    after = min(facts.max_replicas, desired + missing)
    reason = f"{why}: one replica is prepared in pool {following.name}"
    return Step(action="prepare", before=desired, after=after, reason=reason, pool_id=following.id)


def _prepare_for_region(facts: Facts, pool: PoolFacts, needed: int, desired: int, *, is_first: bool) -> list[Step]:
    """Return the step that gives a pool the replicas that requests need in its region; empty if it needs none.

    They are extra ones while others exist elsewhere; those are given up once they were not needed for the down delay.
    The first pool is filled first, so nothing is kept there, and a wake from zero fills it.
    """
    there = min(desired, sum(each.replicas for each in facts.pools))  # a rollout may have more of them
    missing = max(0, needed - pool.replicas)
    after = min(facts.max_replicas, max(desired, there + missing))
    if (is_first and desired == 0) or (after == desired and (is_first or pool.prepared >= needed)):
        return []
    reason = f"requests need {_replicas(needed)} in region {pool.region}: as many are prepared in pool {pool.name}"
    return [Step(action="prepare", before=desired, after=after, reason=reason, pool_id=pool.id)]


def _idle_since(facts: Facts, outlook: _Outlook) -> dt.datetime | None:
    following, utilisation = outlook.following, outlook.utilisation
    low = utilisation is not None and utilisation < outlook.pool.low_water
    idle = following.prepared > 0 and (low or not outlook.may_overflow)
    return (following.not_needed_since or facts.now) if idle else None


def _release(
    facts: Facts, outlook: _Outlook, desired: int, prepared: Mapping[UUID, int], idle_since: dt.datetime | None
) -> Step | None:
    """Return the step that releases what is prepared in the next pool, once it was not needed for the down delay."""
    assert facts.load is not None
    if idle_since is None or (facts.now - idle_since).total_seconds() < facts.down_delay_seconds:
        return None
    following = outlook.following
    needed = with_prepared(facts, wanted_replicas(facts, facts.load), {**prepared, following.id: 0})
    after = min(desired, max(needed, desired - following.prepared))
    if outlook.may_overflow:
        why = f"pool {outlook.pool.name} was below {outlook.pool.low_water:.0%} for {facts.down_delay_seconds:g} s"
    else:
        why = f"all {facts.max_replicas} replicas allowed fit before pool {following.name}"
    reason = f"{why}: what is prepared in pool {following.name} is given up"
    return Step(action="release", before=desired, after=after, reason=reason, pool_id=following.id)


def _follow_load(
    facts: Facts, load: DeploymentLoad, desired: int, prepared: Mapping[UUID, int]
) -> tuple[int, Memory, Step | None]:
    """Return the number of replicas after load and delays are applied to ``desired``, the memory, and the step."""
    target = with_prepared(facts, wanted_replicas(facts, load), prepared)
    memory = _resampled(facts, load)
    if target > desired:
        return _grow(facts, load, desired, target, memory, _starting(facts, prepared))
    if target < desired:
        return _shrink(facts, load, desired, target, memory)
    return desired, memory, None


def _grow(
    facts: Facts, load: DeploymentLoad, desired: int, target: int, memory: Memory, starting: int
) -> tuple[int, Memory, Step | None]:
    if desired == 0:
        return target, memory, Step(action="wake", before=0, after=target, reason=_why_wake(facts, load, target))
    # Requests that wait while replicas start form a queue, which grows with the start's duration, not with the demand.
    if starting > 0:
        return desired, memory, None
    since = facts.memory.more_wanted_since or facts.now
    if (facts.now - since).total_seconds() < facts.up_delay_seconds:
        return desired, replace(memory, more_wanted_since=since), None
    return target, memory, Step(action="up", before=desired, after=target, reason=_why_up(facts, load, target))


def _shrink(
    facts: Facts, load: DeploymentLoad, desired: int, target: int, memory: Memory
) -> tuple[int, Memory, Step | None]:
    since = facts.memory.less_wanted_since
    peak = target if since is None else max(target, facts.memory.less_wanted_peak)
    since = since or facts.now
    if (facts.now - since).total_seconds() < facts.down_delay_seconds:
        return desired, replace(memory, less_wanted_since=since, less_wanted_peak=peak), None
    fewer = max(min(peak, desired - 1), int(_busy_lately(facts)))
    if fewer == desired:
        return desired, replace(memory, less_wanted_since=since, less_wanted_peak=peak), None
    return fewer, memory, Step(action="down", before=desired, after=fewer, reason=_why_down(facts, load, fewer))


def _resampled(facts: Facts, load: DeploymentLoad) -> Memory:
    """Return a memory of the load alone: the earlier sample while it is recent enough, else the present load."""
    sampled_at, tokens = facts.memory.sampled_at, facts.memory.sampled_tokens
    if sampled_at is None or (facts.now - sampled_at).total_seconds() >= SAMPLE_MOST:
        sampled_at, tokens = facts.now, load.in_flight_tokens + load.queued_tokens
    return Memory(sampled_at=sampled_at, sampled_tokens=tokens)


def _busy_lately(facts: Facts) -> bool:
    """Return whether there was any request within the down delay, even one too short to be seen in flight."""
    return facts.busy_at is not None and (facts.now - facts.busy_at).total_seconds() < facts.down_delay_seconds


def _starting(facts: Facts, prepared: Mapping[UUID, int]) -> int:
    """Return how many replicas start to serve the load, without those that only prepare a pool and still do."""
    return sum(max(0, pool.starting - min(pool.prepared, prepared[pool.id])) for pool in facts.pools)


def _reserve(facts: Facts) -> Decision:
    count = facts.reserved_replicas
    step = Step(
        action="up",
        before=facts.desired,
        after=count,
        reason=f"{_replicas(count)} {'is' if count == 1 else 'are'} reserved by tenants",
    )
    kept = {pool.id: pool.prepared for pool in facts.pools}
    return _decision(facts, count, kept, Memory(), (step,))


def _release_all(facts: Facts) -> Decision:
    steps = tuple(
        Step(
            action="release",
            before=facts.desired,
            after=facts.desired,
            reason=f"the number of replicas is fixed: nothing is prepared in pool {pool.name}",
            pool_id=pool.id,
        )
        for pool in facts.pools
        if pool.prepared
    )
    return _decision(facts, facts.desired, {pool.id: 0 for pool in facts.pools}, Memory(), steps)


def _decision(
    facts: Facts,
    desired: int,
    prepared: Mapping[UUID, int],
    memory: Memory,
    steps: tuple[Step, ...],
    idle_since: Mapping[UUID, dt.datetime | None] | None = None,
) -> Decision:
    since = {pool.id: (idle_since or {}).get(pool.id) for pool in facts.pools}
    return Decision(desired=desired, prepared=prepared, not_needed_since=since, memory=memory, steps=steps)


def _why_up(facts: Facts, load: DeploymentLoad, target: int) -> str:
    starting = sum(pool.starting for pool in facts.pools)
    there = sum(pool.replicas for pool in facts.pools) - starting
    by_tokens = _for_tokens(facts, load.in_flight_tokens + load.queued_tokens)
    found = signals(facts.objectives, facts.engines)
    strongest = max(found, key=lambda each: each.wanted, default=None)
    if strongest is not None and strongest.wanted > by_tokens:
        return f"{strongest.reason}: {_replicas(target)} wanted for {facts.up_delay_seconds:g} s; {there} exist"
    return (
        f"{_tokens(load)} want {_replicas(target)} of {_targets(facts)}, for {facts.up_delay_seconds:g} s;"
        f" {there} {'exists' if there == 1 else 'exist'}, {starting} {'starts' if starting == 1 else 'start'}"
    )


def _why_wake(facts: Facts, load: DeploymentLoad, target: int) -> str:
    waiting = "1 request waits" if load.queued_requests == 1 else f"{load.queued_requests} requests wait"
    return f"{waiting} and there is no replica: {_tokens(load)} wake {_replicas(target)} of {_targets(facts)}"


def _why_down(facts: Facts, load: DeploymentLoad, target: int) -> str:
    wanted = "nothing was in flight" if target == 0 else f"no more than {_replicas(target)} were wanted"
    return f"{wanted} for {facts.down_delay_seconds:g} s; {_tokens(load)} now, {_targets(facts)} to a replica"


def _for_tokens(facts: Facts, tokens: int) -> int:
    """Return how many replicas the tokens fill, in the pools in order; those beyond fill ones of the last."""
    count, rest, target = 0, tokens, facts.target_tokens
    for pool in facts.pools:
        target = target_of(facts, pool)
        here = min(math.ceil(rest / target), pool.fits)
        count += here
        rest -= here * target
        if rest <= 0:
            return count
    return count + math.ceil(rest / target)


def _targets(facts: Facts) -> str:
    """Return the target of a replica as text, from the least to the most where pools have several."""
    found = sorted({target_of(facts, pool) for pool in facts.pools} or {facts.target_tokens})
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _tokens(load: DeploymentLoad) -> str:
    """Return the load as text: "2,431 tokens in flight, 300 of them waiting"."""
    waiting = f", {load.queued_tokens:,} of them waiting" if load.queued_tokens else ""
    return f"{load.in_flight_tokens + load.queued_tokens:,} tokens in flight{waiting}"


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"
