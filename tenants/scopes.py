"""What limits and budgets apply to a caller, as a gateway reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

Scope = Literal["tenant", "project", "key"]
Period = Literal["day", "week", "month", "total"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """One limit of a caller. For each figure None is unlimited and 0 admits nothing."""

    id: UUID
    scope: Scope
    #: Empty is all models together.
    model_name: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLine:
    """One budget of a caller that refuses what could exceed it."""

    id: UUID
    scope: Scope
    model_name: str
    period: Period
    limit_pico: int
    currency: str
    #: IANA name of the zone in which its periods begin.
    timezone: str
