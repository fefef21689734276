"""Callers with limits and budgets, what they demand, and the door of a gateway process that admits them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID, uuid4

from caching.store import Deposit
from gateway.admission import Admission, Demand, Ticket
from gateway.errors import GatewayError
from gateway.local import Rank
from gateway.renewal import LEASE_SECONDS
from gateway.shelf import Shelf
from gateway.turns import Turns
from tenants.ids import KeyId, ProjectId, TenantId, new_id
from tenants.registry import Policy
from tenants.scopes import BudgetLine, LimitLine, Period, Scope
from tenants.snapshot import Caller

ALONE = Rank()
OPEN = LimitLine(
    id=UUID(int=0),
    scope="tenant",
    model_name="",
    requests_per_minute=None,
    tokens_per_minute=None,
    concurrent_requests=None,
)


def line(scope: Scope = "tenant", model_name: str = "", id: UUID | None = None, **figures: int) -> LimitLine:
    """Return a limit with these figures; what is not named is unlimited."""
    return replace(OPEN, id=id or uuid4(), scope=scope, model_name=model_name, **cast(Any, figures))


def budget(
    limit_pico: int,
    scope: Scope = "tenant",
    period: Period = "total",
    model_name: str = "",
    id: UUID | None = None,
) -> BudgetLine:
    """Return a hard budget."""
    return BudgetLine(
        id=id or uuid4(),
        scope=scope,
        model_name=model_name,
        period=period,
        limit_pico=limit_pico,
        currency="USD",
        timezone="Europe/Berlin",
    )


def caller(*bounds: LimitLine | BudgetLine, tenant: UUID | None = None) -> Caller:
    """Return a caller with these bounds, of a new tenant unless one is given."""
    return Caller(
        tenant_id=TenantId(tenant or uuid4()),
        tenant_slug="t",
        project_id=ProjectId(uuid4()),
        key_id=KeyId(uuid4()),
        key_public_id="k",
        scopes=frozenset(),
        allowed_models=frozenset(),
        trust_group="",
        policy=Policy(),
        limits=tuple(each for each in bounds if isinstance(each, LimitLine)),
        budgets=tuple(each for each in bounds if isinstance(each, BudgetLine)),
    )


def demand(who: Caller, **changes: Any) -> Demand:
    """Return what a small request of this caller needs: ten tokens and no money."""
    usual: dict[str, Any] = {
        "model_name": "m",
        "request_id": new_id(),
        "tokens": 10,
        "hold_pico": 0,
        "answer_key": None,
    }
    return Demand(caller=who, **{**usual, **changes})


def deposit(who: Caller, name: bytes, value: bytes = b"answer", **changes: Any) -> Deposit:
    """Return an entry of this caller, kept for 90 s with room enough and without limit."""
    usual: dict[str, Any] = {
        "ttl_seconds": 90,
        "quota_bytes": 1 << 20,
        "writes_per_minute": None,
        "source_id": new_id(),
        "model_name": "m",
    }
    return Deposit(tenant_id=who.tenant_id, key_id=who.key_id, name=name, value=value, **{**usual, **changes})


class Doors:
    """Gateways' doors, closed with the block."""

    def __init__(self) -> None:
        self._talks: list[Turns] = []

    async def __aenter__(self) -> Doors:
        return self

    async def __aexit__(self, *_: object) -> None:
        for talk in self._talks:
            await talk.close()

    def __call__(
        self,
        url: str | None = None,
        timeout_seconds: float = 30.0,
        cache_url: str | None = None,
        rank: Rank = ALONE,
        lease_seconds: float = LEASE_SECONDS,
        portioned: Sequence[str] = (),
    ) -> Admission:
        """Return admission with this Redis for limits, the session's unless one is named, and this one for answers."""
        talk = self._talk(url or os.environ["REDIS_URL"], timeout_seconds)
        cache = talk if cache_url is None else self._talk(cache_url, timeout_seconds)
        return Admission(talk, cache, rank=lambda: rank, lease_seconds=lease_seconds, portioned=portioned)

    def shelf(self, url: str | None = None, timeout_seconds: float = 30.0) -> Shelf:
        """Return the answers of another process with this Redis."""
        return Shelf(self._talk(url or os.environ["REDIS_URL"], timeout_seconds), 1 << 20)

    async def heard(self) -> None:
        """Wait until Redis has answered all that was asked, also what nobody waits for."""
        for talk in self._talks:
            await talk.send("PING")  # answered last

    def _talk(self, url: str, timeout_seconds: float) -> Turns:
        self._talks.append(Turns(url, timeout_seconds=timeout_seconds))
        return self._talks[-1]


async def tried(gate: Admission, asked: Demand) -> Ticket | GatewayError:
    """Return what becomes of a demand."""
    try:
        return await gate.admit(asked)
    except GatewayError as refusal:
        return refusal


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is; a minute at most."""
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.05)
