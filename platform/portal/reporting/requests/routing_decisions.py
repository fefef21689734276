"""The decisions of routing for one request, as gateways keep them for a while. For operators."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from django.conf import settings
from redis import RedisError

from catalogue.routing_policy import TERMS
from routing import decision_record, explanation
from routing.explanation import Decision
from tenants import redis_address

#: A page does not wait longer for Redis.
TIMEOUT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one replica would have cost: seconds in all, and by term."""

    replica_id: UUID
    is_chosen: bool
    is_home: bool
    is_full: bool
    cost: float
    terms: Sequence[float]
    warm_tokens: int
    #: Those of them in host memory.
    host_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTable:
    """One decision: who won and why, and all candidates, the cheapest first."""

    outcome: str
    terms: Sequence[str]
    rows: Sequence[Row]


def of_request(request_id: UUID) -> tuple[DecisionTable, ...]:
    """Return the decisions, one for each attempt; none if they are not kept any more, or Redis is unavailable."""
    with (
        suppress(RedisError),
        redis_address.client(
            settings.REDIS_CACHE_URL, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        ) as redis,
    ):
        items = cast("list[bytes]", redis.lrange(decision_record.KEY, 0, -1))
        return tuple(map(_table, decision_record.of_request(items, request_id)))
    return ()


def _table(found: Decision) -> DecisionTable:
    rows = [
        Row(
            replica_id=each.replica_id,
            is_chosen=each.replica_id == found.replica_id,
            is_home=each.replica_id == found.home,
            is_full=each.full,
            cost=each.cost,
            terms=[getattr(each, term) for term in TERMS],
            warm_tokens=each.warm_tokens,
            host_tokens=each.host_tokens,
        )
        for each in explanation.ordered(found)
    ]
    return DecisionTable(outcome=explanation.outcome(found), terms=TERMS, rows=rows)
