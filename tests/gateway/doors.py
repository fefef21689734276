"""Callers with limits and budgets, what they demand, and the door of a gateway process that admits them."""

from __future__ import annotations

import os
from typing import Any
from uuid import UUID, uuid4

from gateway.admission import Admission, Demand, Ticket
from gateway.errors import GatewayError
from gateway.turns import Turns
from tenants.ids import KeyId, ProjectId, TenantId, new_id
from tenants.registry import Policy
from tenants.scopes import BudgetLine, LimitLine, Period, Scope
from tenants.snapshot import Caller


def line(scope: Scope = "tenant", model_name: str = "", **figures: int | None) -> LimitLine:
    """Return a limit with these figures; what is not named is unlimited."""
    named = {"requests_per_minute": None, "tokens_per_minute": None, "concurrent_requests": None, **figures}
    return LimitLine(id=uuid4(), scope=scope, model_name=model_name, **named)


def budget(limit_pico: int, scope: Scope = "tenant", period: Period = "total", model_name: str = "") -> BudgetLine:
    """Return a hard budget."""
    return BudgetLine(
        id=uuid4(),
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


def door(url: str | None = None, timeout_seconds: float = 5.0, **options: Any) -> Admission:
    """Return admission with this Redis for limits and answers, the session's unless one is named."""
    talk = Turns(url or os.environ["REDIS_URL"], timeout_seconds=timeout_seconds)
    return Admission(talk, talk, **options)


async def tried(gate: Admission, asked: Demand) -> Ticket | GatewayError:
    """Return what becomes of a demand."""
    try:
        return await gate.admit(asked)
    except GatewayError as refusal:
        return refusal
