"""A hard budget of one of a gateway's tenants, as the database and Redis have it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import orjson
from redis import Redis

from billing import prices, spending
from billing.counters import Counters
from billing.drainer import Drain
from billing.holds import counter_name, counter_prefix, holds_key
from billing.keeper import Keeper
from billing.prices import DEMO_RATES
from billing.rating import Rates
from gateway.costs import TEMPLATE_TOKENS
from tenants import budgets
from tenants.audit import SYSTEM
from tenants.budgets import Terms
from tenants.ids import TenantId
from tenants.models import Budget
from tenants.subjects import Subject
from tests.gateway.world import HELLO, MODEL, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

#: What the scripted engine's usage costs at the demo prices: 8 prompt tokens, 4 cached ones and 3 written.
CHARGED_PICO = 8 * 150_000 + 4 * 15_000 + 3 * 600_000
MOST_NEW_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Books:
    """What is stored, held and left of one budget of acme."""

    gateway: Gateway
    budget: Budget

    def key(self) -> str:
        """Return the key of its counter."""
        window = spending.bound(self.budget).window(self.budget.created_at)
        return counter_prefix(TenantId(self.budget.tenant_id)) + counter_name(self.budget.id, window.start)

    def left(self) -> int | None:
        """Return what Redis has left of it."""
        with Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as redis:
            value = redis.get(self.key())
        return None if value is None else int(str(value))

    def holds(self) -> dict[str, str]:
        """Return all that is held of its tenant's."""
        with Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as redis:
            found = redis.hgetall(holds_key(TenantId(self.budget.tenant_id)))
        return {str(name): str(value) for name, value in found.items()}

    async def keep(self) -> None:
        """Store what the log has, and let the keeper do a round."""
        await in_database(self._keep)

    def _keep(self) -> None:
        drain = Drain(self.gateway.wal, "here")
        counters = Counters(os.environ["REDIS_URL"], timeout_seconds=10)
        try:
            while drain.step():
                pass
            Keeper(counters, drain.open_starts).pass_by(caught_up=True)
        finally:
            counters.close()
            drain.close()


def body(**changes: Any) -> dict[str, Any]:
    """Return a request of one size, whatever its seed from 100 to 999."""
    return {**HELLO, "temperature": 1, "max_tokens": MOST_NEW_TOKENS, "seed": 100, **changes}


def held_pico(asked: dict[str, Any], new_tokens: int = MOST_NEW_TOKENS) -> int:
    """Return what a request holds."""
    return (len(orjson.dumps(asked)) + TEMPLATE_TOKENS) * 150_000 + new_tokens * 600_000


async def budgeted(gateway: Gateway, limit_pico: int, *, priced: bool = True, rates: Rates = DEMO_RATES) -> Books:
    """Give acme a hard budget, its model a price, and wait until the gateway knows both."""

    def make() -> Budget:
        if priced:
            prices.set_price(SYSTEM, prices.ensure_price_book(), MODEL, rates)
        return budgets.create(OPERATOR, Subject(tenant=gateway.world.acme.tenant), Terms(limit_pico=limit_pico))

    made = Books(gateway, await in_database(make))
    public_id = gateway.world.acme.key.public_id
    await until(lambda: gateway.runtime.feed.view.callers.caller(public_id).budgets)
    return made
