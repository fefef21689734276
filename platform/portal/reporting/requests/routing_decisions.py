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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stickiness:
    """Of the decisions that gateways keep, the newest few thousand: those for a session that has a home."""

    decisions: int
    with_home: int
    at_home: int

    @property
    def share(self) -> float | None:
        """The share of requests of sessions that went to their session's home; None without any."""
        return self.at_home / self.with_home if self.with_home else None


def stickiness() -> Stickiness | None:
    """Return how often sessions stayed; None if Redis is unavailable."""
    items = _items()
    if items is None:
        return None
    found = decision_record.every(items)
    homes = [each for each in found if each.home is not None]
    at_home = sum(each.home == each.replica_id for each in homes)
    return Stickiness(decisions=len(found), with_home=len(homes), at_home=at_home)


def of_request(request_id: UUID) -> tuple[DecisionTable, ...]:
    """Return the decisions, one for each attempt; none if they are not kept any more, or Redis is unavailable."""
    return tuple(map(_table, decision_record.of_request(_items() or (), request_id)))


def _items() -> list[bytes] | None:
    """Return what gateways keep; None if Redis is unavailable."""
    with (
        suppress(RedisError),
        redis_address.client(
            settings.REDIS_CACHE_URL, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        ) as redis,
    ):
        return cast("list[bytes]", redis.lrange(decision_record.KEY, 0, -1))
    return None


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
