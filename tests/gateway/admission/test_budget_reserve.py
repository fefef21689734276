"""Parts of hard budgets set aside for the time Redis is away: spent then, given back else, never beyond the limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from billing.budgets import holds
from gateway.admission.controller import AdmissionController, Reservation
from gateway.admission.lease_renewer import RENEWALS
from gateway.errors import BudgetExceeded, Unavailable
from tenants.snapshot.snapshot import Caller
from tests.gateway.fixtures.callers import Doors, budget, caller, demand, tried, until
from tests.gateway.fixtures.private_redis import PrivateRedis

LIMIT = 10**6
#: Then rounds are short.
LEASE_SECONDS = 0.9


class Site:
    """A door, a caller of a budget with a wide limit, and what Redis has of it."""

    def __init__(self, server: PrivateRedis, door: Doors) -> None:
        self.server = server
        self.gate: AdmissionController = door(server.url, 0.2, lease_seconds=LEASE_SECONDS)
        self.who: Caller = caller(budget(LIMIT))
        self.counter = holds.counter_prefix(self.who.tenant_id) + holds.counter_name(self.who.budgets[0].id, 0)
        self.tickets: list[Reservation] = []
        self.spent = 0

    async def admit(self, hold_pico: int = 10) -> Reservation:
        """Admit a request."""
        self.tickets.append(await self.gate.admit(demand(self.who, hold_pico=hold_pico)))
        return self.tickets[-1]

    def settle(self, ticket: Reservation, pico: int) -> None:
        """End a request that cost so much."""
        ticket.settle(tokens=0, amount_pico=pico)
        self.spent += pico

    async def warm(self) -> None:
        """Answer ten requests, and wait until a slice was taken for more such."""
        for _ in range(10):
            self.settle(await self.admit(), 4)
        await until(self.has_slice)

    async def held(self) -> dict[str, str]:
        """Return what is held, by request."""
        found: Any = await self.server.client.hgetall(holds.holds_key(self.who.tenant_id))
        return {name.decode(): value.decode().partition(" ")[0] for name, value in found.items()}

    async def left(self) -> int:
        """Return what is left."""
        return int(await self.server.client.get(self.counter) or 0)

    async def balanced(self) -> bool:
        """Return whether what is left and what is held or charged is the limit."""
        return await self.left() + sum(int(value.lstrip("=")) for value in (await self.held()).values()) == LIMIT

    async def has_slice(self) -> bool:
        """Return whether something is held that is no request's and not charged."""
        names = {ticket.request.request_id.hex for ticket in self.tickets}
        return any(not value.startswith("=") and name not in names for name, value in (await self.held()).items())


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A site with room for a hundred thousand requests."""
    async with PrivateRedis() as server, Doors() as door:
        found = Site(server, door)
        await server.client.set(found.counter, LIMIT)
        yield found
        server.resume()


async def test_what_began_on_a_slice_holds_further_money_of_the_budget_when_redis_is_back(site: Site) -> None:
    await site.warm()
    site.server.pause()
    ticket = await site.admit()
    site.server.resume()

    async def told_of_the_end() -> bool:
        return not site.gate._renewer._missed

    for _ in range(2):
        await ticket.extend(hold_pico=20)
        await until(told_of_the_end)
    assert (await site.held())[ticket.request.request_id.hex] == "40"
    site.settle(ticket, 45)
    await until(site.balanced)


async def test_a_slice_is_spent_while_redis_is_away_and_charged_when_it_is_back(site: Site) -> None:
    await site.warm()
    assert await site.balanced()
    [aside] = [int(value) for value in (await site.held()).values() if not value.startswith("=")]
    site.server.pause()
    tickets = []
    refused = 0
    for _ in range(aside // 10 + 5):
        answer = await tried(site.gate, demand(site.who, hold_pico=10))
        if isinstance(answer, Reservation):
            tickets.append(answer)
        else:
            assert isinstance(answer, Unavailable)
            assert answer.code == "budget_unavailable"
            refused += 1
    assert (len(tickets), refused) == (aside // 10, 5)
    with pytest.raises(Unavailable):
        await tickets[0].extend(hold_pico=1)
    for ticket in tickets[1:]:
        site.settle(ticket, 3)
    site.server.resume()

    async def charged() -> bool:
        values = list((await site.held()).values())
        return values.count("=3") == len(tickets) - 1 and values.count("=4") == 10

    await until(charged)
    await until(site.balanced)
    await tickets[0].extend(hold_pico=5)
    site.settle(tickets[0], 12)

    async def quiet() -> bool:
        return not await site.has_slice() and await site.left() == LIMIT - site.spent

    await until(quiet)


async def test_a_stream_is_extended_from_the_slice(site: Site) -> None:
    await site.warm()
    ticket = await site.admit()
    site.server.pause()
    await ticket.extend(hold_pico=30)
    site.settle(ticket, 35)
    site.server.resume()

    async def charged() -> bool:
        return "=35" in (await site.held()).values() and await site.balanced()

    await until(charged)


async def test_what_is_set_aside_is_not_missed_at_the_end_of_a_budget(site: Site) -> None:
    await site.warm()
    rest = LIMIT - site.spent
    assert isinstance(await tried(site.gate, demand(site.who, hold_pico=rest + 1)), BudgetExceeded)
    last = await site.admit(rest)
    assert await site.left() == 0
    last.settle(tokens=0, amount_pico=rest)
    assert isinstance(await tried(site.gate, demand(site.who, hold_pico=1)), BudgetExceeded)


async def test_a_budget_without_much_room_has_no_slices(site: Site) -> None:
    for _ in range(8):
        await site.admit(LIMIT // 1000)
        await asyncio.sleep(LEASE_SECONDS / RENEWALS)
        assert not await site.has_slice()
