"""The limits and budgets that apply to a request, and the rate-limit headers of its response."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal
from uuid import UUID

from billing.budgets import holds
from gateway.admission.lua_scripts import UNITS
from gateway.redis_client.connection import Argument
from gateway.request import Headers
from tenants.caller_limits import BudgetLine, LimitLine, Period
from tenants.ids import TenantId
from tenants.isolation import keyspace
from tenants.policy import periods
from tenants.snapshot.snapshot import Caller

Kind = Literal["requests", "tokens", "concurrency"]
KINDS: tuple[Kind, ...] = ("requests", "tokens", "concurrency")
#: Larger limits of tokens per minute count as this: up to here buckets are exact.
MAX_TOKENS = 10**11


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisKeys:
    """The Redis keys of one tenant's limits and budgets (see ``gateway.admission.lua_scripts``)."""

    limits: str
    holds: str
    #: Prefixes of the keys of leases and of counters.
    leases: str
    counters: str

    @classmethod
    def of(cls, tenant_id: TenantId) -> RedisKeys:
        """Return the keys of a tenant."""
        return cls(
            limits=keyspace.tenant_key(tenant_id, "limits"),
            holds=holds.holds_key(tenant_id),
            leases=keyspace.tenant_key(tenant_id, "leases"),
            counters=holds.counter_prefix(tenant_id),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPlan:
    """The limits and budgets of one caller's requests to one model."""

    keys: RedisKeys
    lines: tuple[LimitLine, ...]
    budgets: tuple[BudgetLine, ...]
    #: The lines as arguments of ADMIT and SETTLE.
    admit_arguments: tuple[Argument, ...]
    settle_arguments: tuple[Argument, ...]
    #: Keys of the leases of limits with a concurrency.
    leased: tuple[str, ...]
    #: A limit of zero, which admits nothing, and which of its values is zero.
    closed: tuple[LimitLine, Kind] | None
    #: The headers about requests, and about tokens.
    header_groups: tuple[tuple[RateLimitHeader, ...], tuple[RateLimitHeader, ...]]
    #: The names of counters in the minute since 1970 of the last request.
    _cached_names: dict[int, tuple[str, ...]] = field(init=False, default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, caller: Caller, model_name: str) -> LimitPlan:
        """Return the plan of a caller for a model."""
        lines = tuple(line for line in caller.limits if line.model_name in {"", model_name})
        admit: list[Argument] = [len(lines)]
        settle: list[Argument] = []
        for line in lines:
            tokens = _argument(tokens_of(line))
            concurrent = _argument(line.concurrent_requests)
            admit += [line.id.hex, _argument(line.requests_per_minute), tokens, concurrent]
            if tokens != "-" or concurrent != "-":
                settle += [line.id.hex, tokens, int(concurrent != "-")]
        keys = RedisKeys.of(caller.tenant_id)
        return cls(
            keys=keys,
            lines=lines,
            budgets=tuple(each for each in caller.budgets if each.covers(model_name)),
            admit_arguments=tuple(admit),
            settle_arguments=tuple(settle),
            leased=tuple(keys.leases + line.id.hex for line in lines if line.concurrent_requests is not None),
            closed=next((found for line in lines if (found := _closed(line)) is not None), None),
            header_groups=(_headers_for(lines, "requests"), _headers_for(lines, "tokens")),
        )

    def counters(self, request_id: UUID) -> tuple[str, ...]:
        """Return the names of the counters of a request's budgets, by the time in its id."""
        if not self.budgets:
            return ()
        minute = (request_id.int >> 80) // 60_000
        named = self._cached_names.get(minute)
        if named is None:
            windows = [_window(each.period, each.timezone, minute) for each in self.budgets]
            named = tuple(holds.counter_name(each.id, at) for each, at in zip(self.budgets, windows, strict=True))
            self._cached_names.clear()
            self._cached_names[minute] = named
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitHeader:
    """The headers for one number of a limit. ``at``: the index of its units owed in the script's reply."""

    at: int
    limit: int
    scope: tuple[bytes, bytes]
    limit_header: tuple[bytes, bytes]
    remaining_name: bytes
    reset_name: bytes

    @classmethod
    def of(cls, line: LimitLine, kind: Kind, limit: int, *, at: int = 0) -> RateLimitHeader:
        """Return the header for a limit's requests or tokens."""
        name = kind.encode()
        return cls(
            at=at,
            limit=limit,
            scope=scope_header(line),
            limit_header=(b"x-ratelimit-limit-" + name, b"%d" % limit),
            remaining_name=b"x-ratelimit-remaining-" + name,
            reset_name=b"x-ratelimit-reset-" + name,
        )

    def remaining(self, owed: int) -> int:
        """Return the requests or tokens left when ``owed`` units are owed."""
        left = self.limit * UNITS - owed
        return left // UNITS if left > 0 else 0

    def headers(self, remaining: int, reset_ms: int) -> Headers:
        """Return the three headers; the reset is in seconds with one decimal, as OpenAI writes it.

        ``reset_ms``: until the bucket is full again, or the rejected request would be admitted.
        """
        return [
            self.limit_header,
            (self.remaining_name, b"%d" % remaining),
            (self.reset_name, b"%d.%ds" % divmod(-(-reset_ms // 100), 10)),
        ]


def headers(plan: LimitPlan, owed: Sequence[int]) -> Headers:
    """Return the headers of an admitted request: for requests and for tokens, of the limit nearest to rejecting.

    That is the one with the smallest fraction left. ``owed`` has two values for each line, requests and tokens. The
    scope header is that of the nearer of the two.
    """
    found: Headers = []
    scope, least = None, math.inf
    for group in plan.header_groups:
        if not group:
            continue
        nearest = group[0]
        if len(group) > 1:
            nearest = min(group, key=lambda each: each.remaining(owed[each.at]) / each.limit if each.limit else 0.0)
        units, limit = owed[nearest.at], nearest.limit
        remaining = nearest.remaining(units)
        found += nearest.headers(remaining, -(-units // limit) if limit else 0)
        left = remaining / limit if limit else 0.0
        if left < least:
            scope, least = nearest.scope, left
    if scope is not None:
        found.append(scope)
    return found


def scope_header(line: LimitLine | BudgetLine) -> tuple[bytes, bytes]:
    """Return the header that names the scope of a limit or budget, and its model if it has one."""
    return b"x-ratelimit-scope", f"{line.scope}:{line.model_name}".rstrip(":").encode()


def tokens_of(line: LimitLine) -> int | None:
    """Return a limit's tokens per minute, at most MAX_TOKENS."""
    return None if line.tokens_per_minute is None else min(line.tokens_per_minute, MAX_TOKENS)


@lru_cache(maxsize=4096)
def _window(period: Period, timezone: str, minute: int) -> int:
    """Return when the period began that contains a minute since 1970; in every time zone days begin on a minute."""
    return periods.begins(period, timezone, datetime.fromtimestamp(minute * 60, UTC))


def _headers_for(lines: Sequence[LimitLine], kind: Literal["requests", "tokens"]) -> tuple[RateLimitHeader, ...]:
    values = [line.requests_per_minute if kind == "requests" else tokens_of(line) for line in lines]
    return tuple(
        RateLimitHeader.of(line, kind, value, at=2 * number + (kind == "tokens"))
        for number, (line, value) in enumerate(zip(lines, values, strict=True))
        if value is not None
    )


def _closed(line: LimitLine) -> tuple[LimitLine, Kind] | None:
    values = (line.requests_per_minute, line.tokens_per_minute, line.concurrent_requests)
    return next(((line, kind) for kind, value in zip(KINDS, values, strict=True) if value == 0), None)


def _argument(value: int | None) -> Argument:
    return "-" if value is None else value
