"""Limits and budgets while Redis is paused: nobody waits long, nothing is admitted beyond twice, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.budgets import holds
from gateway.admission.controller import AdmissionController, Reservation
from gateway.admission.local_limiter import GatewayRank, LocalLimiter, Rejection
from gateway.admission.lua_scripts import UNITS
from gateway.errors import GatewayError, RateLimited, Unavailable
from tenants.ids import new_id
from tenants.isolation import keyspace
from tenants.policy import limits
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tenants.snapshot.snapshot import Caller
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.budget import budgeted
from tests.gateway.fixtures.callers import Doors, budget, caller, demand, line, tried, until
from tests.gateway.fixtures.private_redis import PrivateRedis
from tests.gateway.fixtures.tenants import HELLO, Gateway, in_database
from tests.tenants.customers import OPERATOR

TWO = GatewayRank(number=0, gateways=2), GatewayRank(number=1, gateways=2)


@pytest.fixture
async def server() -> AsyncIterator[PrivateRedis]:
    """A Redis that may be paused."""
    async with PrivateRedis() as running:
        yield running


@pytest.fixture
async def door() -> AsyncIterator[Doors]:
    """Makes a gateway's door."""
    async with Doors() as doors:
        yield doors


async def admitted(gate: AdmissionController, who: Caller, requests: int, tokens: int = 10) -> list[Reservation]:
    """Return the reservations of ``requests`` sent one after another."""
    answers = [await tried(gate, demand(who, tokens=tokens)) for _ in range(requests)]
    assert all(isinstance(answer, Reservation | RateLimited) for answer in answers)
    return [answer for answer in answers if isinstance(answer, Reservation)]


@given(st.integers(0, 10**11), st.integers(1, 300))
def test_the_shares_of_all_gateways_sum_to_the_limit(limit: int, gateways: int) -> None:
    shares = [GatewayRank(number=number, gateways=gateways).share(limit) for number in range(gateways)]
    assert (sum(shares), max(shares) - min(shares) <= 1) == (limit, True)


def test_a_gateway_knows_its_rank_before_others_know_it() -> None:
    assert GatewayRank.of("b", ("a", "c")) == GatewayRank(number=1, gateways=3)
    assert GatewayRank.of("b", ("a", "b", "c")) == GatewayRank(number=1, gateways=3)
    assert GatewayRank.of("b", ()) == GatewayRank(number=0, gateways=1)


@given(st.integers(1, 10**11), st.lists(st.integers(1, 10**11), max_size=10))
def test_a_bucket_in_memory_admits_what_fits_and_takes_nothing_else(limit: int, amounts: list[int]) -> None:
    here, counted, owed = LocalLimiter(), line(tokens_per_minute=limit), 0
    for amount in amounts:
        taken = here.take((counted,), GatewayRank(), new_id(), requests=1, tokens=amount, leased=False, forced=False)
        if isinstance(taken, Rejection):
            assert (taken.kind, owed + amount > limit) == ("tokens", True)
        else:
            assert taken[0] == 0
            assert amount * UNITS <= taken[1] <= limit * UNITS
            owed = -(-taken[1] // UNITS)


async def test_twice_the_limit_is_admitted_around_a_pause_and_no_more(server: PrivateRedis, door: Doors) -> None:
    gates = [door(server.url, 0.2, rank=rank) for rank in TWO]
    who = caller(line(requests_per_minute=11), line("key", requests_per_minute=100))
    assert len(await admitted(gates[0], who, 15)) == 11
    server.pause()
    shares = await asyncio.gather(*[admitted(gate, who, 10) for gate in gates])
    assert [len(share) for share in shares] == [6, 5]
    refused = await tried(gates[0], demand(who))
    assert isinstance(refused, RateLimited)
    assert dict(refused.headers)[b"x-ratelimit-scope"] == b"tenant"
    server.resume()


async def test_tokens_are_shared_too_and_what_was_not_used_comes_back(server: PrivateRedis, door: Doors) -> None:
    server.pause()
    gate, who = door(server.url, 0.1, rank=TWO[0]), caller(line(tokens_per_minute=100))
    [first] = await admitted(gate, who, 2, tokens=40)
    assert dict(first.headers())[b"x-ratelimit-remaining-tokens"] == b"10"
    first.settle(tokens=5, amount_pico=0)
    assert len(await admitted(gate, who, 2, tokens=40)) == 1
    assert await admitted(gate, who, 1, tokens=60) == []  # more than its share ever has
    server.resume()


async def test_what_runs_is_counted_here_and_in_redis_again_when_it_is_back(server: PrivateRedis, door: Doors) -> None:
    gate, counted = door(server.url, 0.1, rank=TWO[0], lease_seconds=1.5), line(concurrent_requests=4)
    who = caller(counted)
    server.pause()
    running = await admitted(gate, who, 4)
    assert len(running) == 2
    running[0].settle(tokens=1, amount_pico=0)
    [third] = await admitted(gate, who, 2)
    server.resume()
    names = {ticket.request.request_id.hex.encode() for ticket in (running[1], third)}
    key = keyspace.tenant_key(who.tenant_id, "leases", counted.id.hex)

    async def known() -> bool:
        return set(await server.client.zrange(key, 0, -1)) == names

    await until(known)
    third.settle(tokens=1, amount_pico=0)
    names.discard(third.request.request_id.hex.encode())
    await until(known)


async def test_an_answer_of_this_process_needs_no_budget_that_could_be_asked(server: PrivateRedis, door: Doors) -> None:
    gate, who = door(server.url, 0.1), caller(budget(100), line(requests_per_minute=2))
    server.pause()
    assert isinstance(await gate.admit(demand(who, tokens=0)), Reservation)
    refused = await tried(gate, demand(who, hold_pico=1))
    assert isinstance(refused, Unavailable)
    assert (refused.code, dict(refused.headers)[b"retry-after"]) == ("budget_unavailable", b"1")
    server.resume()


async def test_a_hold_that_was_placed_after_its_request_gave_up_is_given_back(
    server: PrivateRedis, door: Doors
) -> None:
    gate, who = door(server.url, 0.2, lease_seconds=1.5), caller(budget(100))
    counter = holds.counter_prefix(who.tenant_id) + holds.counter_name(who.budgets[0].id, 0)
    await server.client.set(counter, 100)
    (await gate.admit(demand(who, hold_pico=1))).settle(tokens=0, amount_pico=1)
    server.pause()
    assert isinstance(await tried(gate, demand(who, hold_pico=60)), Unavailable)
    server.resume()

    async def whole() -> bool:
        return (
            await server.client.get(counter) == b"99" and await server.client.hlen(holds.holds_key(who.tenant_id)) == 1
        )

    await until(whole)


async def test_what_ends_while_redis_is_away_is_charged_when_it_is_back(server: PrivateRedis, door: Doors) -> None:
    gate, who = door(server.url, 0.2, lease_seconds=1.5), caller(budget(100))
    counter = holds.counter_prefix(who.tenant_id) + holds.counter_name(who.budgets[0].id, 0)
    await server.client.set(counter, 100)
    tickets = [await gate.admit(demand(who, hold_pico=20)) for _ in range(4)]
    server.pause()
    for ticket in tickets:
        ticket.settle(tokens=0, amount_pico=3)
    refused: GatewayError | Reservation = await tried(gate, demand(who, hold_pico=60))
    assert isinstance(refused, Unavailable)
    server.resume()

    async def charged() -> bool:
        return await server.client.get(counter) == b"88"

    await until(charged)


async def test_a_redis_without_memory_admits_no_more_than_the_limits_and_hard_budgets(
    paused_at_will: tuple[Gateway, PrivateRedis],
) -> None:
    gateway, server = paused_at_will
    acme = gateway.world.acme
    await in_database(
        lambda: limits.set_limit(
            OPERATOR, PolicyTarget(tenant=acme.tenant), LimitValues(requests_per_minute=3, tokens_per_minute=None)
        )
    )
    await tenants.until(lambda: gateway.caller().limits)
    await server.client.config_set("maxmemory", "1")
    answers = [await gateway.ask({**HELLO, "seed": number}) for number in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert (await gateway.ask(headers={"idempotency-key": "once"})).status == 503


async def test_a_redis_without_memory_replays_what_it_has_and_keeps_nothing_new(
    paused_at_will: tuple[Gateway, PrivateRedis],
) -> None:
    gateway, server = paused_at_will
    sampled = {**HELLO, "temperature": 1}
    stored = await gateway.ask(sampled, headers={"idempotency-key": "before"})
    await server.client.config_set("maxmemory", "1")
    again = await gateway.ask(sampled, headers={"idempotency-key": "before"})
    assert (again.status, again.body) == (200, stored.body)
    assert again.answer_headers["idempotent-replayed"] == "true"
    refused = await gateway.ask(sampled, headers={"idempotency-key": "after"})
    assert (refused.status, refused.error["code"]) == (503, "idempotency_unavailable")
    before = len(gateway.bodies())
    session = {"x-session-id": "s"}
    asked = [await gateway.ask({**HELLO, "seed": 1}, headers=session) for _ in range(2)]
    # The process itself remembers the response for a minute; Redis takes none.
    assert [each.answer_headers["x-cache"] for each in asked] == ["miss", "hit"]
    routed = [await gateway.ask({**sampled, "seed": number}, headers=session) for number in range(2)]
    assert {each.answer_headers["x-route"].partition(";")[0] for each in routed} == {"session"}
    assert len(gateway.bodies()) == before + 3
    assert [key async for key in server.client.scan_iter("hearth:*:prediction*")] == []
    await server.client.config_set("maxmemory", "0")
    assert (await gateway.ask(sampled, headers={"idempotency-key": "after"})).status == 200


async def test_a_redis_without_memory_spends_nothing_of_a_hard_budget_and_says_so(
    paused_at_will: tuple[Gateway, PrivateRedis],
) -> None:
    gateway, server = paused_at_will
    await budgeted(gateway, 10**15)
    await server.client.config_set("maxmemory", "1")
    refused = await gateway.ask()
    assert (refused.status, refused.error["code"]) == (503, "budget_unknown"), refused.body
