"""One seed: an instance, its clients, the faults one after another, and an audit after every few."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from tests.chaos import audit
from tests.chaos.clients import Clients, Outcome, outage_seconds
from tests.chaos.faults import Fault
from tests.chaos.world import READY_SECONDS, World, until
from workers.processes import age_seconds, identify

#: Faults between two audits.
ROUND = 5
#: A process whose memory grew more than so much, times and MiB, from the first audit to the last leaks.
GROWTH, GROWTH_MIB = 1.5, 64
#: A process imports what it needs until it is this old; its memory is compared from then on.
SETTLED_SECONDS = 30.0
#: Requests without any fault before the first one, and after the last.
QUIET_SECONDS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """What one fault cost: requests that ran between it and the next one, and those of them that failed then."""

    kind: str
    requests: int
    failed: int
    outage_seconds: float
    ready_seconds: float
    #: The failed ones by status and code, and how often.
    told: dict[str, int]
    #: How many failed by the number of the address that they were sent to first.
    by_address: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """What a seed showed. ``differences`` is what must not be; empty is a pass."""

    seed: int
    struck: list[Struck] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    requests: int = 0
    #: Completion tokens that the surviving engines counted, and those that their rows have.
    counted_tokens: int = 0
    stored_tokens: int = 0
    #: Resident memory of each role at the first and the last audit in which it was the same process, MiB.
    memory_mib: dict[str, tuple[float, float]] = field(default_factory=dict)


async def run(
    world: World,
    faults: Iterable[tuple[Fault, Random]],
    seed: int,
    say: Callable[[str], None],
    *,
    quiet_seconds: float = QUIET_SECONDS,
) -> Report:
    """Break the instance under load, and return what that showed."""
    report = Report(seed)
    clients = Clients(world, seed)
    memory: dict[tuple[str, int], tuple[float, float]] = {}
    strikes: list[_Strike] = []
    async with clients.asking():
        await asyncio.sleep(quiet_seconds)
        for number, (fault, random) in enumerate(faults, start=1):
            strikes.append(await _strike(world, clients, fault, random, report))
            say(f"{number:4} {fault.kind}: well again after {strikes[-1].well - strikes[-1].began:.1f} s")
            if number % ROUND == 0:
                await _audit(world, clients, report, memory, say)
        await asyncio.sleep(quiet_seconds)
        await _audit(world, clients, report, memory, say)
    report.requests = len(clients.outcomes)
    nexts = [*(strike.began for strike in strikes[1:]), float("inf")]
    report.struck = [_cost(*each, clients.outcomes) for each in zip(strikes, nexts, strict=True)]
    report.memory_mib = {name: sizes for (name, _), sizes in memory.items()}
    report.differences += _leaks(report.memory_mib)
    return report


@dataclass(frozen=True, slots=True)
class _Strike:
    """When a fault began, when it was undone, and when all was well again."""

    kind: str
    began: float
    healed: float
    well: float


async def _strike(world: World, clients: Clients, fault: Fault, random: Random, report: Report) -> _Strike:
    began = time.monotonic()
    try:
        await asyncio.to_thread(fault.strike, world, random)
    except Exception as error:  # a strike that fails is itself a finding, and the run goes on
        report.differences.append(f"{fault.kind}: {type(error).__name__} {error}"[:400])
    healed = time.monotonic()
    if not await asyncio.to_thread(_is_well, world, clients.outcomes, healed):
        report.differences.append(f"{fault.kind}: not ready again after {READY_SECONDS} s")
    return _Strike(fault.kind, began, healed, time.monotonic())


def _cost(strike: _Strike, until_next: float, outcomes: list[Outcome]) -> Struck:
    """Return what a fault cost, once every request has ended. A failure counts for the last fault before it."""
    meanwhile = [each for each in outcomes if each.began < until_next and each.ended > strike.began]
    failed = [each for each in meanwhile if not each.good and strike.began < each.failed_at < until_next]
    # What the next fault broke is no outage of this one.
    known = [each for each in outcomes if each.good or each.failed_at < until_next]
    return Struck(
        kind=strike.kind,
        requests=len(meanwhile),
        failed=len(failed),
        outage_seconds=round(outage_seconds(known, strike.began), 1),
        ready_seconds=round(strike.well - strike.healed, 1),
        told=dict(Counter(each.told for each in failed)),
        by_address=dict(Counter(each.base for each in failed)),
    )


def _is_well(world: World, outcomes: list[Outcome], since: float) -> bool:
    """Wait until requests are answered again and every process is ready; say whether that came."""
    answered = until(lambda: outage_seconds(outcomes, since) < float("inf"), READY_SECONDS)
    return world.wait_until_ready() and answered


async def _audit(
    world: World,
    clients: Clients,
    report: Report,
    memory: dict[tuple[str, int], tuple[float, float]],
    say: Callable[[str], None],
) -> None:
    await clients.pause()
    found = await asyncio.to_thread(audit.audit, world, clients.outcomes)
    if world.clock is None:
        boots = await asyncio.to_thread(audit.boots, world)
        found += audit.more_stored_than_counted(boots)
        report.counted_tokens = sum(each.counted for each in boots)
        report.stored_tokens = sum(each.stored for each in boots)
    new = [each for each in found if each not in report.differences]
    report.differences += new
    for name, size in world.resident_mib().items():
        identity = identify(world.pids(name)[0])
        if identity is not None and age_seconds(identity) >= SETTLED_SECONDS:
            process = (name, identity.pid)
            first, _ = memory.get(process, (size, size))
            memory[process] = (first, size)
    say(f"    audit: {len(clients.outcomes)} requests, {len(new)} differences")
    for each in new[:20]:
        say(f"      {each}")
    clients.resume()


def _leaks(memory_mib: dict[str, tuple[float, float]]) -> list[str]:
    return [
        f"{name}: {first:.0f} MiB grew to {last:.0f}"
        for name, (first, last) in memory_mib.items()
        if last > GROWTH * first and last > first + GROWTH_MIB
    ]
