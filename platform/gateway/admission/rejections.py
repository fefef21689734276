"""What a request is told that a limit or a budget refuses."""

from __future__ import annotations

import math

from gateway import metrics
from gateway.admission.limit_plan import Kind, RateLimitHeader, scope_header
from gateway.errors import BadRequest, BudgetExceeded, RateLimited, Unavailable
from tenants.caller_limits import BudgetLine, LimitLine

#: What a limit of zero says: nothing but its change helps, so come back in a while.
CLOSED_MS = 60_000
_FIGURES: dict[Kind, str] = {
    "requests": "requests a minute",
    "tokens": "tokens a minute",
    "concurrency": "requests at once",
}
_PERIODS = {"day": "daily ", "week": "weekly ", "month": "monthly ", "total": ""}


def limited(line: LimitLine, kind: Kind, wait_ms: int) -> RateLimited:
    """Return the refusal of a limit that is used up for now. ``wait_ms``: until the request would fit."""
    metrics.limit_rejected(kind)
    limit = {
        "requests": line.requests_per_minute,
        "tokens": line.tokens_per_minute,
        "concurrency": line.concurrent_requests,
    }[kind]
    seconds = max(1, math.ceil(wait_ms / 1000))
    refusal = RateLimited(
        f"The {_whose(line)} limit of {limit} {_FIGURES[kind]}{_of_model(line)} is used up. Try again in {seconds} s.",
        "rate_limit_exceeded",
        headers=[(b"retry-after", b"%d" % seconds)],
    )
    if kind != "concurrency":
        refusal.headers.extend(RateLimitHeader.of(line, kind, limit or 0).headers(0, wait_ms))
    refusal.headers.append(scope_header(line))
    return refusal


def too_large(line: LimitLine, tokens: int) -> BadRequest:
    """Return the refusal of a request that no waiting helps: it may take more tokens than the limit ever has."""
    metrics.limit_rejected("too_large")
    return BadRequest(
        f"The request may take {tokens} tokens, prompt and answer, and the {_whose(line)} limit{_of_model(line)} is "
        f"{line.tokens_per_minute} tokens a minute. Send a shorter prompt or ask for fewer tokens.",
        "request_exceeds_limit",
        headers=[scope_header(line)],
    )


def budget_exceeded(line: BudgetLine) -> BudgetExceeded:
    """Return the refusal of a hard budget that has no room for what the request may cost."""
    metrics.limit_rejected("budget")
    return BudgetExceeded(
        f"The {_whose(line)} {_PERIODS[line.period]}budget of {_money(line)}{_of_model(line)} has no room for what "
        "this request may cost.",
        "budget_exceeded",
        headers=[scope_header(line), (b"x-should-retry", b"false")],
    )


def budget_unknown(line: BudgetLine) -> Unavailable:
    """Return the answer while nobody has counted yet what is left of a hard budget."""
    metrics.limit_rejected("budget_unknown")
    return Unavailable(
        f"What is left of the {_whose(line)} {_PERIODS[line.period]}budget is being counted. Try again shortly.",
        "budget_unknown",
        headers=[(b"retry-after", b"1"), scope_header(line)],
    )


def budget_unavailable(line: BudgetLine) -> Unavailable:
    """Return the answer while Redis is away and this process has nothing set aside of a hard budget."""
    metrics.limit_rejected("budget_unavailable")
    return Unavailable(
        f"What is left of the {_whose(line)} {_PERIODS[line.period]}budget cannot be asked at the moment.",
        "budget_unavailable",
        headers=[(b"retry-after", b"1"), scope_header(line)],
    )


def _whose(line: LimitLine | BudgetLine) -> str:
    return {"tenant": "tenant's", "project": "project's", "key": "API key's"}[line.scope]


def _of_model(line: LimitLine | BudgetLine) -> str:
    return f" for {line.model_name!r}" if line.model_name else ""


def _money(line: BudgetLine) -> str:
    cents = line.limit_pico // 10**10
    return f"{cents // 100}.{cents % 100:02d} {line.currency}"
