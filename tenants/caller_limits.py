"""Limits, budgets and prediction-cache terms of a caller, as a gateway reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

Scope = Literal["tenant", "project", "key"]
Period = Literal["day", "week", "month", "total"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """One limit of a caller. For each value None is unlimited and 0 admits nothing."""

    id: UUID
    scope: Scope
    #: Empty: all models together.
    model_name: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLine:
    """One hard budget of a caller: requests that could exceed it are refused."""

    id: UUID
    scope: Scope
    model_name: str
    period: Period
    limit_pico: int
    currency: str
    #: IANA name of the time zone in which its periods begin.
    timezone: str
    #: It is the balance of a prepaid tenant, whose limit only the database has.
    is_prepaid: bool = False
    #: Names that its model had before: for a moment a gateway has another name of the model than of the budget.
    earlier_names: tuple[str, ...] = ()

    def covers(self, model_name: str) -> bool:
        """Return whether requests to the model count against it."""
        return self.model_name in {"", model_name} or model_name in self.earlier_names


CacheMode = Literal["off", "deterministic", "all"]
#: Larger responses are not stored: one must not evict a thousand others, and packing it blocks the event loop.
LARGEST_ENTRY_BYTES = 1 << 20
#: Longest time to live of a stored response.
LONGEST_TTL_SECONDS = 30 * 24 * 3600
#: A waiting request keeps memory of a gateway and a connection of its client.
LONGEST_QUEUE_SECONDS = 3600
MOST_QUEUED_REQUESTS = 1_000_000
LARGEST_QUEUE_BYTES = 1 << 40
LARGEST_IDEMPOTENCY_BYTES_PER_HOUR = 1 << 40
#: Longest time that routing remembers a session without a request (``routing.sessions``).
LONGEST_SESSION_SECONDS = 7 * 24 * 3600
#: Header names that may name a session, and the characters of each. A request's headers are searched for all of them.
MOST_SESSION_HEADERS = 8
LONGEST_HEADER_NAME = 64
LARGEST_WEIGHT = 1000
#: How long a purge applies. The extra day covers requests that ran at the time of the purge and were stored later.
PURGES_HOLD_SECONDS = LONGEST_TTL_SECONDS + 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Purges:
    """Which stored responses of a tenant are purged: the newest purge of each kind (ids are UUIDv7)."""

    everything: UUID | None = None
    models: Mapping[str, UUID] = field(default_factory=dict)
    keys: Mapping[UUID, UUID] = field(default_factory=dict)
    requests: Mapping[UUID, UUID] = field(default_factory=dict)

    #: Whether nothing is purged. Precomputed, because every hit checks it.
    nothing: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        purged = self.everything is not None or self.models or self.keys or self.requests
        object.__setattr__(self, "nothing", not purged)

    def covers(self, source_id: UUID, key_id: UUID, model_name: str) -> bool:
        """Return whether the response to this request of this key by this model is purged."""
        if self.nothing:
            return False
        if source_id in self.requests:
            return True
        newest = (self.everything, self.models.get(model_name), self.keys.get(key_id))
        return any(purge is not None and source_id <= purge for purge in newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTerms:
    """What a key may do with the prediction cache: its own setting, else its project's, else its tenant's policy."""

    mode: CacheMode = "deterministic"
    ttl_seconds: int = 3600
    entry_bytes: int = LARGEST_ENTRY_BYTES
    quota_bytes: int = 256 << 20
    #: For this key; None is unlimited.
    writes_per_minute: int | None = None
    #: Scopes ``cache:read`` and ``cache:write``.
    may_read: bool = True
    may_write: bool = True
    purges: Purges = field(default_factory=Purges)
