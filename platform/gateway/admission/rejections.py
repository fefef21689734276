"""The errors for requests that a limit or a budget rejects."""

from __future__ import annotations

import math

from billing.pricing import amounts
from gateway import metrics
from gateway.admission.limit_plan import Kind, RateLimitHeader, scope_header
from gateway.errors import BadRequest, BalanceExceeded, BudgetExceeded, RateLimited, Unavailable
from tenants.caller_limits import BudgetLine, LimitLine

#: Retry-After for a limit of zero, which only a change of the limit lifts.
CLOSED_MS = 60_000
_UNITS: dict[Kind, str] = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "concurrency": "concurrent requests",
}
_PERIODS = {"day": "daily ", "week": "weekly ", "month": "monthly ", "total": ""}


def limited(line: LimitLine, kind: Kind, wait_ms: int) -> RateLimited:
    """Return the error for a limit that is used up. ``wait_ms``: until the request would be admitted."""
    metrics.limit_rejected(kind)
    limit = {
        "requests": line.requests_per_minute,
        "tokens": line.tokens_per_minute,
        "concurrency": line.concurrent_requests,
    }[kind]
    seconds = max(1, math.ceil(wait_ms / 1000))
    error = RateLimited(
        f"The {_owner(line)} limit of {limit} {_UNITS[kind]}{_of_model(line)} is used up. Retry after {seconds} s.",
        "rate_limit_exceeded",
        headers=[(b"retry-after", b"%d" % seconds)],
    )
    if kind != "concurrency":
        error.headers.extend(RateLimitHeader.of(line, kind, limit or 0).headers(0, wait_ms))
    error.headers.append(scope_header(line))
    return error


def too_large(line: LimitLine, tokens: int) -> BadRequest:
    """Return the error for a request that may use more tokens than the limit allows per minute: no retry helps."""
    metrics.limit_rejected("too_large")
    return BadRequest(
        f"The request may use {tokens} tokens for its prompt and completion, but the {_owner(line)} "
        f"limit{_of_model(line)} is {line.tokens_per_minute} tokens per minute. Shorten the prompt or request fewer "
        "tokens.",
        "request_exceeds_limit",
        headers=[scope_header(line)],
    )


def budget_exceeded(line: BudgetLine) -> BudgetExceeded:
    """Return the error for a hard budget with less left than the request may cost."""
    metrics.limit_rejected("budget")
    if line.is_prepaid:
        return BalanceExceeded(
            "The prepaid balance has less left than this request may cost. Add credit, or request fewer tokens.",
            "insufficient_balance",
            headers=[scope_header(line), (b"x-should-retry", b"false")],
        )
    return BudgetExceeded(
        f"The {_owner(line)} {_PERIODS[line.period]}budget of {_money(line)}{_of_model(line)} has less left than this "
        "request may cost. Raise the budget, or request fewer tokens.",
        "budget_exceeded",
        headers=[scope_header(line), (b"x-should-retry", b"false")],
    )


def budget_unknown(line: BudgetLine) -> Unavailable:
    """Return the error while the counter of a hard budget is being built."""
    metrics.limit_rejected("budget_unknown")
    return Unavailable(
        f"The remaining {_named(line)} is being computed. Retry after 1 s.",
        "budget_unknown",
        headers=[(b"retry-after", b"1"), scope_header(line)],
    )


def budget_unavailable(line: BudgetLine) -> Unavailable:
    """Return the error while Redis is unavailable and this process has no reserve of a hard budget."""
    metrics.limit_rejected("budget_unavailable")
    return Unavailable(
        f"The remaining {_named(line)} cannot be checked at the moment. Retry after 1 s.",
        "budget_unavailable",
        headers=[(b"retry-after", b"1"), scope_header(line)],
    )


def _named(line: BudgetLine) -> str:
    return "prepaid balance" if line.is_prepaid else f"{_owner(line)} {_PERIODS[line.period]}budget"


def _owner(line: LimitLine | BudgetLine) -> str:
    return {"tenant": "tenant's", "project": "project's", "key": "API key's"}[line.scope]


def _of_model(line: LimitLine | BudgetLine) -> str:
    return f" for {line.model_name!r}" if line.model_name else ""


def _money(line: BudgetLine) -> str:
    return f"{amounts.units(line.limit_pico, line.currency)} {line.currency}"
