"""The limits in this process, for the time Redis is away: of each, the share of one among the gateways that live.

Shares are whole and sum to the limit. Buckets start full, as Redis's may have been emptied just before: both together
admit twice what is configured, never more. A limit smaller than the number of gateways leaves some of them with none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from gateway.admission.limit_plan import Kind, tokens_of
from gateway.admission.lua_scripts import UNITS
from tenants.caller_limits import LimitLine

#: While Redis is away nobody knows when a lease elsewhere ends, nor what a share of another gateway has left.
AGAIN_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRank:
    """Which of the gateways this is. ``number`` counts from 0."""

    number: int = 0
    gateways: int = 1

    @classmethod
    def of(cls, own: str, live: Iterable[str]) -> GatewayRank:
        """Return the rank of the process of this name; one that is not known to live yet counts as if it were."""
        names = sorted({own, *live})
        return cls(number=names.index(own), gateways=len(names))

    def share(self, whole: int) -> int:
        """Return this gateway's part; the parts of all sum to the whole."""
        return whole // self.gateways + (self.number < whole % self.gateways)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Which limit refuses, by what, and for how long."""

    line: LimitLine
    kind: Kind
    wait_ms: int


@dataclass(slots=True)
class _Bucket:
    """Units that are owed at a moment, as in ``gateway.admission.lua_scripts``."""

    owed: int = 0
    since_ms: int = 0

    def at(self, now_ms: int, rate: int) -> int:
        return max(self.owed - (now_ms - self.since_ms) * rate, 0)

    def put(self, now_ms: int, owed: int) -> None:
        self.owed, self.since_ms = owed, now_ms


@dataclass(slots=True)
class _LimitState:
    """One limit here."""

    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    running: set[UUID] = field(default_factory=set)


class LocalLimiter:
    """Every limit that was asked here while Redis was away."""

    def __init__(self) -> None:
        self._counted: dict[UUID, _LimitState] = {}

    def take(
        self,
        lines: tuple[LimitLine, ...],
        rank: GatewayRank,
        request_id: UUID,
        *,
        requests: int,
        tokens: int,
        leased: bool,
        forced: bool,
    ) -> Rejection | list[int]:
        """Take from every limit, or from none; return who refuses, or what requests and tokens each owes.

        Other gateways' shares count as owed. ``forced`` takes what does not fit.
        """
        now = time.monotonic_ns() // 1_000_000
        refusals: list[Rejection] = []
        changes: list[tuple[_Bucket, int]] = []
        told: list[int] = []
        for line in lines:
            counted = self._counted.setdefault(line.id, _LimitState())
            kinds: tuple[tuple[Kind, _Bucket, int | None, int], ...] = (
                ("requests", counted.requests, line.requests_per_minute, requests),
                ("tokens", counted.tokens, tokens_of(line), tokens),
            )
            for kind, bucket, limit, amount in kinds:
                if limit is None:
                    told.append(0)
                    continue
                share = rank.share(limit)
                owed = bucket.at(now, share) + amount * UNITS
                changes.append((bucket, owed))
                told.append(owed + (limit - share) * UNITS)
                if amount and owed > share * UNITS:
                    wait = -(-(owed - share * UNITS) // share) if amount <= share else AGAIN_MS
                    refusals.append(Rejection(line=line, kind=kind, wait_ms=wait))
            together = line.concurrent_requests
            if leased and together is not None and len(counted.running) >= rank.share(together):
                refusals.append(Rejection(line=line, kind="concurrency", wait_ms=AGAIN_MS))
        if refusals and not forced:
            return max(refusals, key=lambda each: each.wait_ms)
        for bucket, owed in changes:
            bucket.put(now, owed)
        if leased:
            for line in lines:
                self._counted[line.id].running.add(request_id)
        return told

    def settle(self, lines: tuple[LimitLine, ...], rank: GatewayRank, request_id: UUID, *, tokens: int) -> None:
        """End a request: its leases, and the tokens it used beyond those it took, negative for fewer."""
        now = time.monotonic_ns() // 1_000_000
        for line in lines:
            counted = self._counted.get(line.id)
            if counted is None:
                continue
            counted.running.discard(request_id)
            limit = tokens_of(line)
            if limit is not None and tokens:
                counted.tokens.put(now, max(counted.tokens.at(now, rank.share(limit)) + tokens * UNITS, 0))
