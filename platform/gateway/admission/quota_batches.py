"""Requests and tokens a minute in portions, for a tenant that outgrows one Redis. Opt-in, by tenant.

A process takes from every limit at once, by one script, what it admitted in the last PORTION_SECONDS, and admits from
that for as long. All of it was taken beforehand, so never more is admitted than the limits allow. What a portion has
left when it lapses is lost of its requests, while its tokens go back: each process may so refuse up to one portion too
early. A request that finds no portion asks Redis by itself, as every request of other tenants does, and as all do that
are bounded by a budget or by how many may run at once: those are exact for everybody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.admission.limit_plan import MOST_TOKENS, Plan, tokens_of
from gateway.admission.lua_scripts import ADMIT, ADMITTED, SETTLE, UNITS
from gateway.redis_client.client import Turns
from gateway.redis_client.connection import RedisFailed

PORTION_SECONDS = 0.1
#: With fewer in that time Redis is asked for each.
LEAST_REQUESTS = 8
#: A portion is at most one part in so many of a limit.
PARTS = 20


@dataclass(slots=True)
class _Portion:
    """What was taken and is not used. ``owed`` is what the limits then owed, two numbers for each."""

    requests: int
    tokens: int
    until: float
    owed: list[int]


@dataclass(slots=True)
class _Flow:
    """One plan's traffic in this process: its portion, what is asked in this window and was in the last."""

    portion: _Portion = field(default_factory=lambda: _Portion(0, 0, 0.0, []))
    window: int = 0
    requests: int = 0
    tokens: int = 0
    last_requests: int = 0
    last_tokens: int = 0
    asking: asyncio.Task[None] | None = None
    #: Tokens used beyond those taken, of requests that ended since Redis was told; negative for fewer.
    more: int = 0

    def count(self, tokens: int) -> None:
        window = int(time.monotonic() / PORTION_SECONDS)
        if window != self.window:
            follows = window == self.window + 1
            self.last_requests, self.last_tokens = (self.requests, self.tokens) if follows else (0, 0)
            self.window, self.requests, self.tokens = window, 0, 0
        self.requests += 1
        self.tokens += tokens


class Portions:
    """The portions of one process, by the limits they are of. ``tenants`` are the slugs of those that opted in."""

    def __init__(self, turns: Turns, tenants: Sequence[str]) -> None:
        self._turns = turns
        self._tenants = frozenset(tenants)
        self._flows: dict[tuple[str, ...], tuple[Plan, _Flow]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def serve(self, plan: Plan, tenant_slug: str) -> bool:
        """Say whether requests under this plan may be admitted from portions."""
        return tenant_slug in self._tenants and bool(plan.lines) and not plan.leased and not plan.budgets

    async def take(self, plan: Plan, tokens: int) -> list[int] | None:
        """Take a request from the portion; return what each limit owes, or None where Redis must be asked."""
        flow = self._flow(plan)
        flow.count(tokens)
        if (owed := _take(flow.portion, tokens)) is not None:
            return owed
        if flow.asking is None:
            if flow.last_requests < LEAST_REQUESTS or self._turns.failing:
                return None
            flow.asking = asyncio.ensure_future(self._fill(plan, flow))
        await asyncio.wait({flow.asking})
        return _take(flow.portion, tokens)

    def settle(self, plan: Plan, more: int) -> None:
        """Count tokens used beyond those taken; Redis is told once for many requests."""
        self._flow(plan).more += more
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PORTION_SECONDS, self._tell)

    def _flow(self, plan: Plan) -> _Flow:
        name = (plan.keys.limits, *(line.id.hex for line in plan.lines))
        known = self._flows.get(name)
        if known is None or known[0].lines != plan.lines:  # a limit was changed; its portion lapses
            known = self._flows[name] = (plan, known[1] if known is not None else _Flow())
        return known[1]

    async def _fill(self, plan: Plan, flow: _Flow) -> None:
        """Take a portion, or none where the limits have not so much left."""
        requests, tokens = _size(plan, flow)
        keys = plan.keys
        said = (2, keys.limits, keys.holds, keys.leases, keys.counters, "", requests, tokens, 0, 0, 0, 0)
        try:
            outcome, _, _, _, _, *owed = await self._turns.call(ADMIT, *said, *plan.admit_arguments)
            if outcome == ADMITTED:
                flow.more -= flow.portion.tokens
                flow.portion = _Portion(requests, tokens, time.monotonic() + PORTION_SECONDS, owed)
        except RedisFailed:
            return
        finally:
            flow.asking = None

    def _tell(self) -> None:
        self._timer = None
        for plan, flow in self._flows.values():
            if flow.portion.until < time.monotonic():
                flow.more -= flow.portion.tokens
                flow.portion.requests = flow.portion.tokens = 0
            if flow.more and plan.settle_arguments:
                keys = plan.keys
                said = (2, keys.limits, keys.holds, keys.leases, keys.counters, "", flow.more, "")
                self._turns.tell_script(SETTLE, *said, *plan.settle_arguments)
            flow.more = 0


def _size(plan: Plan, flow: _Flow) -> tuple[int, int]:
    """Return the requests and tokens of the next portion: as in the last window, or in this one if it is busier."""
    asked, used = max((flow.last_requests, flow.last_tokens), (flow.requests, flow.tokens))
    rates = [line.requests_per_minute for line in plan.lines if line.requests_per_minute is not None]
    requests = max(1, min([asked, *[rate // PARTS for rate in rates]]))
    flows = [limit for line in plan.lines if (limit := tokens_of(line)) is not None]
    tokens = min([used * requests // asked, *[limit // PARTS for limit in flows]])
    return requests, tokens if flows else MOST_TOKENS


def _take(portion: _Portion, tokens: int) -> list[int] | None:
    if portion.requests < 1 or portion.tokens < tokens or time.monotonic() >= portion.until:
        return None
    portion.requests -= 1
    portion.tokens -= tokens
    return [max(owed - left * UNITS, 0) for owed, left in zip(portion.owed, _left(portion), strict=True)]


def _left(portion: _Portion) -> list[int]:
    return [portion.requests, portion.tokens] * (len(portion.owed) // 2)
