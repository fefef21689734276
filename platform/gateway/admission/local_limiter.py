"""Limits counted in this process while Redis is unavailable: each gateway process admits its share of every limit.

Shares are integers and sum to the limit. Local buckets start full although those in Redis may just have been used up:
together they admit at most twice the configured limit. A limit smaller than the number of gateways leaves some with
none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from gateway.admission.limit_plan import Kind, tokens_of
from gateway.admission.lua_scripts import UNITS
from tenants.caller_limits import LimitLine

#: Retry-After where it cannot be computed: without Redis the state of other gateways is not known.
AGAIN_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRank:
    """The position of this process among the running gateways. ``number`` counts from 0."""

    number: int = 0
    gateways: int = 1

    @classmethod
    def of(cls, own: str, live: Iterable[str]) -> GatewayRank:
        """Return the rank of the process ``own``, which may be missing in ``live``."""
        names = sorted({own, *live})
        return cls(number=names.index(own), gateways=len(names))

    def share(self, whole: int) -> int:
        """Return this gateway's share; the shares of all sum to ``whole``."""
        return whole // self.gateways + (self.number < whole % self.gateways)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The limit that rejects a request, by which of its numbers, and for how long."""

    line: LimitLine
    kind: Kind
    wait_ms: int


@dataclass(slots=True)
class _Bucket:
    """Units owed at a time, as in ``gateway.admission.lua_scripts``."""

    owed: int = 0
    since_ms: int = 0

    def at(self, now_ms: int, rate: int) -> int:
        return max(self.owed - (now_ms - self.since_ms) * rate, 0)

    def put(self, now_ms: int, owed: int) -> None:
        self.owed, self.since_ms = owed, now_ms


@dataclass(slots=True)
class _LimitState:
    """The state of one limit in this process."""

    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    running: set[UUID] = field(default_factory=set)


class LocalLimiter:
    """Every limit that was used in this process while Redis was unavailable."""

    def __init__(self) -> None:
        self._states: dict[UUID, _LimitState] = {}

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
        """Take from every limit, or from none; return the rejection, or for each limit the requests and tokens owed.

        The shares of other gateways count as owed. ``forced`` takes what does not fit.
        """
        now = time.monotonic_ns() // 1_000_000
        rejections: list[Rejection] = []
        changes: list[tuple[_Bucket, int]] = []
        totals: list[int] = []
        for line in lines:
            state = self._states.setdefault(line.id, _LimitState())
            kinds: tuple[tuple[Kind, _Bucket, int | None, int], ...] = (
                ("requests", state.requests, line.requests_per_minute, requests),
                ("tokens", state.tokens, tokens_of(line), tokens),
            )
            for kind, bucket, limit, amount in kinds:
                if limit is None:
                    totals.append(0)
                    continue
                share = rank.share(limit)
                owed = bucket.at(now, share) + amount * UNITS
                changes.append((bucket, owed))
                totals.append(owed + (limit - share) * UNITS)
                if amount and owed > share * UNITS:
                    wait = -(-(owed - share * UNITS) // share) if amount <= share else AGAIN_MS
                    rejections.append(Rejection(line=line, kind=kind, wait_ms=wait))
            concurrency = line.concurrent_requests
            if leased and concurrency is not None and len(state.running) >= rank.share(concurrency):
                rejections.append(Rejection(line=line, kind="concurrency", wait_ms=AGAIN_MS))
        if rejections and not forced:
            return max(rejections, key=lambda each: each.wait_ms)
        for bucket, owed in changes:
            bucket.put(now, owed)
        if leased:
            for line in lines:
                self._states[line.id].running.add(request_id)
        return totals

    def settle(self, lines: tuple[LimitLine, ...], rank: GatewayRank, request_id: UUID, *, tokens: int) -> None:
        """End a request. ``tokens``: used beyond those taken, negative for fewer."""
        now = time.monotonic_ns() // 1_000_000
        for line in lines:
            state = self._states.get(line.id)
            if state is None:
                continue
            state.running.discard(request_id)
            limit = tokens_of(line)
            if limit is not None and tokens:
                state.tokens.put(now, max(state.tokens.at(now, rank.share(limit)) + tokens * UNITS, 0))
