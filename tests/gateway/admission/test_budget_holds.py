"""Hard budgets: what is admitted holds its most, what ends gives back the rest, and nothing is ever spent twice."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from billing.budgets import holds
from gateway.admission.controller import Reservation
from gateway.errors import BudgetExceeded, RateLimited, Unavailable
from tenants.caller_limits import BudgetLine
from tenants.ids import created_at
from tenants.isolation import keyspace
from tenants.policy import periods
from tenants.snapshot.snapshot import Caller
from tests.gateway.fixtures.callers import Doors, budget, caller, demand, line, tried, until

DOLLAR = 10**12


def key_of(who: Caller, line: BudgetLine, window: int = 0) -> str:
    """Return the key of a budget's counter."""
    return holds.counter_prefix(who.tenant_id) + holds.counter_name(line.id, window)


async def left(redis: Redis, who: Caller, number: int = 0) -> int:
    """Return what is left of a caller's budget."""
    found: Any = await redis.get(key_of(who, who.budgets[number]))
    return int(found)


async def opened(redis: Redis, *budgets: BudgetLine, tenant: UUID | None = None) -> Caller:
    """Return a caller of these budgets, whose counters are there."""
    who = caller(*budgets, tenant=tenant)
    for each in budgets:
        await redis.set(key_of(who, each), each.limit_pico)
    return who


async def test_of_two_hundred_at_once_exactly_those_are_admitted_that_fit(redis: Redis, door: Doors) -> None:
    gate, who = door(), await opened(redis, budget(37 * 3 + 2), budget(10**6, "key"))
    answers = await asyncio.gather(*[tried(gate, demand(who, hold_pico=3)) for _ in range(200)])
    admitted = [answer for answer in answers if isinstance(answer, Reservation)]
    assert (len(admitted), await left(redis, who), await left(redis, who, 1)) == (37, 2, 10**6 - 111)
    refused = next(answer for answer in answers if isinstance(answer, BudgetExceeded))
    assert (refused.status, refused.code) == (429, "budget_exceeded")
    assert dict(refused.headers)[b"x-ratelimit-scope"] == b"tenant"
    for ticket in admitted:
        ticket.settle(tokens=10, amount_pico=1)
    assert isinstance(await tried(gate, demand(who, hold_pico=3)), Reservation)
    assert await left(redis, who) == 37 * 3 + 2 - 37 - 3


@pytest.mark.parametrize("apart", [False, True])
async def test_of_two_hundred_answers_found_at_once_exactly_those_are_given_that_fit(
    redis: Redis, door: Doors, apart: bool
) -> None:
    gate, who = door(), await opened(redis, budget(37 * 3 + 2))
    key = keyspace.redis_key(who, "prediction", "ab")
    await redis.set(key, b"answer", ex=60)
    other = door(cache_url=os.environ["REDIS_URL"]) if apart else gate
    asked = [demand(who, hold_pico=3 if apart else 50, hit_pico=3, cache_key=key) for _ in range(200)]
    answers = await asyncio.gather(*[tried(other, each) for each in asked])
    admitted = [answer for answer in answers if isinstance(answer, Reservation)]
    assert {ticket.stored for ticket in admitted} == {b"answer"}
    assert all(isinstance(answer, BudgetExceeded) for answer in answers if not isinstance(answer, Reservation))
    assert (len(admitted), await left(redis, who)) == (37, 2)
    for ticket in admitted:
        ticket.settle(tokens=0, amount_pico=3)
    assert isinstance(await tried(gate, demand(who, hit_pico=3, hold_pico=3, cache_key=key)), BudgetExceeded)
    assert await left(redis, who) == 2


async def test_an_answer_that_cannot_be_used_gives_its_price_back_for_what_an_engine_takes(
    redis: Redis, door: Doors
) -> None:
    gate, who = door(), await opened(redis, budget(100))
    key = keyspace.redis_key(who, "prediction", "ab")
    await redis.set(key, b"altered", ex=60)
    ticket = await gate.admit(demand(who, hold_pico=98, hit_pico=3, cache_key=key))
    assert (ticket.stored, await left(redis, who)) == (b"altered", 97)
    await ticket.take_for_engine()
    assert await left(redis, who) == 2
    ticket.settle(tokens=1, amount_pico=90)
    assert isinstance(await tried(gate, demand(who, hold_pico=11)), BudgetExceeded)
    assert await left(redis, who) == 10


async def test_an_answer_that_costs_nothing_asks_no_budget(redis: Redis, door: Doors) -> None:
    gate, who = door(), await opened(redis, budget(0))
    key = keyspace.redis_key(who, "prediction", "ab")
    await redis.set(key, b"answer", ex=60)
    assert (await gate.admit(demand(who, hold_pico=3, cache_key=key))).stored == b"answer"
    assert await left(redis, who) == 0


@asynccontextmanager
async def process(who: Caller, **changes: Any) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.Task[int]]]:
    """Run a process that admits, and what it says."""
    asked = {
        "url": os.environ["REDIS_URL"],
        "tenant": str(who.tenant_id),
        "budgets": [str(each.id) for each in who.budgets],
        "limits": [str(each.id) for each in who.limits],
        "concurrent_requests": 5,
        "lease_seconds": 30,
        "requests": 100,
        "hold_pico": 3,
        **changes,
    }
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.gateway.fixtures.admission_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert started.stdin is not None
    assert started.stdout is not None
    said = started.stdout

    async def admitted() -> int:
        async with asyncio.timeout(60):
            return int(await said.readline())

    started.stdin.write(json.dumps(asked).encode() + b"\n")
    answer = asyncio.ensure_future(admitted())
    try:
        yield started, answer
    finally:
        await asyncio.wait({answer})
        started.stdin.close()
        await started.wait()


async def test_two_processes_together_admit_no_more_than_fits(redis: Redis) -> None:
    who = await opened(redis, budget(37 * 3 + 2))
    async with process(who) as (_, one), process(who) as (_, other):
        assert await one + await other == 37
    assert await left(redis, who) == 2
    assert len(await redis.hgetall(holds.holds_key(who.tenant_id))) == 37


async def test_a_killed_process_gives_its_leases_back_when_they_end(redis: Redis, door: Doors) -> None:
    who = caller(line(concurrent_requests=5))
    gate = door(lease_seconds=4.0)
    async with process(who, lease_seconds=4, requests=9) as (gateway, admitted):
        assert await admitted == 5
        assert isinstance(await tried(gate, demand(who)), RateLimited)
        gateway.kill()
        await gateway.wait()

    async def admits() -> bool:
        return isinstance(await tried(gate, demand(who)), Reservation)

    await until(admits)


async def test_a_budget_that_refuses_takes_nothing_from_another_nor_from_limits(redis: Redis, door: Doors) -> None:
    wide, narrow = budget(100), budget(5, "project", model_name="m")
    limited = line(requests_per_minute=3, tokens_per_minute=100, concurrent_requests=1)
    known = await opened(redis, wide, narrow)
    who = caller(wide, narrow, limited, tenant=known.tenant_id)
    gate = door()
    refused = await tried(gate, demand(who, hold_pico=6))
    assert isinstance(refused, BudgetExceeded)
    assert "project's budget of 0.000000000005 USD for 'm'" in refused.message
    assert (await left(redis, who), await left(redis, who, 1), len(await redis.keys())) == (100, 5, 2)
    assert isinstance(await tried(gate, demand(who, hold_pico=5)), Reservation)


async def test_a_limit_that_refuses_holds_nothing(redis: Redis, door: Doors) -> None:
    known = await opened(redis, budget(100))
    who = caller(known.budgets[0], line(requests_per_minute=1), tenant=known.tenant_id)
    gate = door()
    answers = [await tried(gate, demand(who, hold_pico=10)) for _ in range(3)]
    assert [type(answer) for answer in answers] == [Reservation, RateLimited, RateLimited]
    assert await left(redis, who) == 90


async def test_while_nobody_knows_what_is_left_nothing_is_admitted(redis: Redis, door: Doors) -> None:
    who = caller(budget(100, period="month"))
    refused = await tried(door(), demand(who))
    assert isinstance(refused, Unavailable)
    assert (refused.code, dict(refused.headers)[b"retry-after"]) == ("budget_unknown", b"1")
    assert await redis.dbsize() == 0


async def test_a_request_draws_from_the_period_in_which_it_began(redis: Redis, door: Doors) -> None:
    daily = budget(100, period="day")
    who = caller(daily)
    asked = demand(who, hold_pico=7)
    window = periods.begins("day", "Europe/Berlin", created_at(asked.request_id))
    today = key_of(who, daily, window)
    await redis.set(today, 100)
    ticket = await door().admit(asked)
    ticket.settle(tokens=0, amount_pico=7)

    async def charged() -> bool:
        return await redis.get(today) == b"93" and bool(await redis.hvals(holds.holds_key(who.tenant_id)))

    await until(charged)
    value = (await redis.hvals(holds.holds_key(who.tenant_id)))[0]
    assert value == f"=7 {holds.counter_name(daily.id, window)}".encode()


async def test_a_hold_is_extended_while_there_is_room_and_then_no_further(redis: Redis, door: Doors) -> None:
    gate, who = door(), await opened(redis, budget(100), budget(50, "key"))
    ticket = await gate.admit(demand(who, hold_pico=10))
    await ticket.extend(hold_pico=40)
    assert (await left(redis, who), await left(redis, who, 1)) == (50, 0)
    with pytest.raises(BudgetExceeded, match="API key's"):
        await ticket.extend(hold_pico=1)
    assert (await left(redis, who), await left(redis, who, 1)) == (50, 0)
    ticket.settle(tokens=1, amount_pico=20)
    await ticket.extend(hold_pico=5)  # it has ended, and holds nothing any more
    assert isinstance(await tried(gate, demand(who, hold_pico=30)), Reservation)
    assert (await left(redis, who), await left(redis, who, 1)) == (50, 0)


async def test_amounts_are_exact_where_doubles_are_not(redis: Redis, door: Doors) -> None:
    million = 10**6 * DOLLAR + 1
    gate, who = door(), await opened(redis, budget(million))
    ticket = await gate.admit(demand(who, hold_pico=million - 64))
    assert await left(redis, who) == 64
    assert isinstance(await tried(gate, demand(who, hold_pico=65)), BudgetExceeded)
    await ticket.extend(hold_pico=63)
    ticket.settle(tokens=0, amount_pico=million - 1)
    assert isinstance(await tried(gate, demand(who, hold_pico=1)), Reservation)
    assert await left(redis, who) == 0
    assert isinstance(await tried(gate, demand(who, hold_pico=2**63 - 1)), BudgetExceeded)
    assert await left(redis, who) == 0


async def test_a_stored_answer_is_given_although_nothing_is_left(redis: Redis, door: Doors) -> None:
    gate, who = door(), await opened(redis, budget(0))
    key = keyspace.redis_key(who, "prediction", "abc")
    await redis.set(key, b"answer")
    hit = await gate.admit(demand(who, hold_pico=5, cache_key=key))
    assert (hit.stored, await redis.exists(holds.holds_key(who.tenant_id))) == (b"answer", 0)
    with pytest.raises(BudgetExceeded):
        await hit.take_for_engine()


async def test_what_is_only_accepted_for_later_holds_nothing(redis: Redis, door: Doors) -> None:
    gate, who = door(), await opened(redis, budget(0))
    assert isinstance(await tried(gate, demand(who, tokens=0)), Reservation)
    assert await redis.exists(holds.holds_key(who.tenant_id)) == 0


async def test_a_request_that_is_tried_again_holds_once(redis: Redis, door: Doors) -> None:
    who = await opened(redis, budget(100))
    asked = demand(who, hold_pico=60, limited=False)
    for _ in range(3):
        ticket = await door().admit(asked)
    assert await left(redis, who) == 40
    ticket.settle(tokens=0, amount_pico=1)
    await until(lambda: settled(redis, who, 99))


async def settled(redis: Redis, who: Caller, pico: int) -> bool:
    """Return whether ``pico`` is what is left."""
    return await left(redis, who) == pico


async def test_a_cancelled_request_gives_its_hold_back(redis: Redis, door: Doors) -> None:
    gate, who = door(), await opened(redis, budget(100))
    await (await gate.admit(demand(who, hold_pico=1))).extend(hold_pico=1)
    asked = asyncio.ensure_future(gate.admit(demand(who, hold_pico=60)))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: settled(redis, who, 98))


@settings(max_examples=40)
@given(
    limits=st.lists(st.integers(0, 300), min_size=1, max_size=3),
    steps=st.lists(
        st.tuples(st.sampled_from(["admit", "extend", "settle", "settle twice"]), st.integers(0, 60)), max_size=25
    ),
)
async def test_what_is_left_is_the_limit_less_charges_and_holds(
    limits: list[int], steps: list[tuple[str, int]]
) -> None:
    """A plain model of the same steps must agree on every decision, and on every counter to the pico-dollar."""
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis, Doors() as door:
        gate, who = door(), await opened(redis, *[budget(limit) for limit in limits])
        charged, held = 0, dict[Reservation, int]()
        for kind, pico in steps:
            room = min(limits) - charged - sum(held.values())
            if kind == "admit":
                answer = await tried(gate, demand(who, hold_pico=pico))
                assert isinstance(answer, Reservation) == (pico <= room)
                if isinstance(answer, Reservation):
                    held[answer] = pico
            elif held and kind == "extend":
                ticket = next(iter(held))
                try:
                    await ticket.extend(hold_pico=pico)
                except BudgetExceeded:
                    assert pico > room
                else:
                    assert pico <= room
                    held[ticket] += pico
            elif held:
                ticket, most = held.popitem()
                for _ in range(1 + (kind == "settle twice")):
                    ticket.settle(tokens=0, amount_pico=min(pico, most))
                charged += min(pico, most)
        await tried(gate, demand(who, tokens=0))  # answered after all that nobody waited for
        remaining = [limit - charged - sum(held.values()) for limit in limits]
        assert [await left(redis, who, number) for number in range(len(limits))] == remaining


async def test_a_counter_of_another_server_admits_nothing_until_it_is_counted_again(redis: Redis, door: Doors) -> None:
    """As after a failover: the replica that became the primary may lack what was admitted last."""
    gate, who = door(), await opened(redis, budget(100))
    counted_on = holds.counter_prefix(who.tenant_id) + holds.COUNTED_ON
    ticket = await gate.admit(demand(who, hold_pico=10))
    await redis.set(counted_on, "another")
    refused = await tried(gate, demand(who, hold_pico=10))
    assert isinstance(refused, Unavailable)
    assert refused.code == "budget_unknown"
    with pytest.raises(Unavailable):
        await ticket.extend(hold_pico=10, patience_seconds=0.5)
    with pytest.raises(Unavailable):  # at once: it has waited
        await ticket.extend(hold_pico=10, patience_seconds=0.5)
    assert await left(redis, who) == 90

    await redis.set(counted_on, str((await redis.info("server"))["run_id"]))
    assert isinstance(await tried(gate, demand(who, hold_pico=10)), Reservation)
    # The first request of a connection is sent before the server has said its name.
    assert isinstance(await tried(door(), demand(who, hold_pico=10)), Reservation)
    assert await left(redis, who) == 70
