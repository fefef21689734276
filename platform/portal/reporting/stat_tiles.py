"""The numbers at the top of a page: each with its unit, its period, and how it compares with the period before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from billing.ledger.rollups import Sums
from portal.formats import money
from portal.formats.numbers import compact, count, milliseconds, percent

#: What each number means.
MEANINGS = {
    "requests": "Requests that were admitted in this period.",
    "errors": "Requests that failed by the platform's doing or were refused; a client that left is none.",
    "tokens-in": "Prompt tokens that engines were sent, warm ones included.",
    "tokens-out": "Tokens that engines wrote.",
    "prediction-rate": "Of all requests, those that got a stored answer, or another one's as it was written.",
    "prefix-rate": "Of all prompt tokens that engines were sent, those that they had in their prefix cache.",
    "billed": "What these requests cost, each at the price that was in force when it was admitted.",
    "saved-prediction": "What hits and coalesced answers would have cost at the price in force, less what they cost.",
    "saved-prefix": "What warm prompt tokens would have cost as new ones, less what they cost.",
    "hits": "Requests that got a stored answer.",
    "coalesced": "Requests that got the answer of an identical one in flight, as it was written.",
    "bypassed": "Requests whose answer was not looked for. Why is told below.",
    "tokens-avoided": "What the answers of hits and coalesced requests took once: prompt, warm or not, and completion.",
    "engine-time": "For how long engines had worked on the answers of hits and coalesced requests.",
    "warm-in": "Prompt tokens that engines had in their prefix cache.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatTile:
    """One number. ``exact`` is what a hover tells when ``value`` is rounded."""

    key: str
    label: str
    value: str
    unit: str = ""
    comparison: str = ""
    exact: str = ""
    #: Takes two columns where there is room.
    wide: bool = False
    #: ``warm`` for what the platform saved, ``alarm`` for what is wrong, else empty.
    tone: str = ""
    link: str = ""

    @property
    def meaning(self) -> str:
        """What a hover over its label tells."""
        return MEANINGS[self.key]


def tokens_in(sums: Sums) -> int:
    """Return all prompt tokens that an engine was sent, warm ones included."""
    return sums.prompt_tokens + sums.cached_prompt_tokens


def prediction_hit_rate(sums: Sums) -> float | None:
    """Return the share of requests that got another one's answer, stored or as written; None without requests."""
    return answered_without_engine(sums) / sums.requests if sums.requests else None


def answered_without_engine(sums: Sums) -> int:
    """Return how many requests had no engine of their own: hits and coalesced ones."""
    return sums.prediction_hits + sums.coalesced_requests


def prefix_hit_rate(sums: Sums) -> float | None:
    """Return the share of prompt tokens that were warm in an engine; None without prompt tokens."""
    total = tokens_in(sums)
    return sums.cached_prompt_tokens / total if total else None


def error_rate(sums: Sums) -> float | None:
    """Return the share of requests that failed or were refused; None without requests."""
    return sums.errors / sums.requests if sums.requests else None


def usage_tiles(now: Sums, before: Sums, *, currency: str, errors_link: str = "") -> tuple[StatTile, ...]:
    """Return the figures of a period, compared with the one before it."""
    return (
        _count_tile("requests", "Requests", now.requests, before.requests),
        StatTile(
            key="errors",
            label="Errors",
            value=count(now.errors),
            unit=f"· {percent(error_rate(now))}" if now.requests else "",
            comparison=_change(now.errors, before.errors),
            tone="alarm" if now.errors else "",
            link=errors_link if now.errors else "",
        ),
        _count_tile("tokens-in", "Tokens in", tokens_in(now), tokens_in(before)),
        _count_tile("tokens-out", "Tokens out", now.completion_tokens, before.completion_tokens),
        _rate_tile("prediction-rate", "Prediction hit rate", "of requests", prediction_hit_rate, now, before),
        _rate_tile("prefix-rate", "Prefix hit rate", "of tokens in", prefix_hit_rate, now, before),
        _money_tile("billed", "Billed", now.amount_pico, before.amount_pico, currency, ""),
        _prediction_saving_tile(now, before, currency),
        _money_tile(
            "saved-prefix", "Saved by prefix", now.saved_prefix_pico, before.saved_prefix_pico, currency, "warm"
        ),
    )


def savings_tiles(now: Sums, before: Sums, *, currency: str) -> tuple[StatTile, ...]:
    """Return the figures of what the two caches saved in a period, compared with the one before it."""
    return (
        _prediction_saving_tile(now, before, currency),
        _rate_tile("prediction-rate", "Prediction hit rate", "of requests", prediction_hit_rate, now, before),
        _count_tile("hits", "Hits", now.prediction_hits, before.prediction_hits),
        _count_tile("coalesced", "Coalesced", now.coalesced_requests, before.coalesced_requests),
        _count_tile("bypassed", "Bypassed", now.bypassed_requests, before.bypassed_requests),
        _count_tile("tokens-avoided", "Tokens avoided", now.avoided_tokens, before.avoided_tokens),
        StatTile(
            key="engine-time",
            label="Engine time avoided",
            value=milliseconds(now.avoided_engine_ms),
            comparison=_change(now.avoided_engine_ms, before.avoided_engine_ms),
        ),
        _money_tile(
            "saved-prefix", "Saved by prefix", now.saved_prefix_pico, before.saved_prefix_pico, currency, "warm"
        ),
        _rate_tile("prefix-rate", "Prefix hit rate", "of tokens in", prefix_hit_rate, now, before),
        _count_tile("warm-in", "Warm tokens in", now.cached_prompt_tokens, before.cached_prompt_tokens),
    )


def _count_tile(key: str, label: str, now: int, before: int) -> StatTile:
    return StatTile(key=key, label=label, value=compact(now), exact=count(now), comparison=_change(now, before))


def _rate_tile(
    key: str, label: str, unit: str, rate: Callable[[Sums], float | None], now: Sums, before: Sums
) -> StatTile:
    current, earlier = rate(now), rate(before)
    comparison = ""
    if current is not None and earlier is not None:
        points = round((current - earlier) * 100, 1)
        comparison = "as before" if points == 0 else f"{'▲' if points > 0 else '▼'} {abs(points):.1f} pts"
    return StatTile(
        key=key, label=label, value=percent(current), comparison=" · ".join(filter(None, (unit, comparison)))
    )


def _prediction_saving_tile(now: Sums, before: Sums, currency: str) -> StatTile:
    saved, saved_before = now.saved_prediction_pico, before.saved_prediction_pico
    return _money_tile("saved-prediction", "Saved by prediction", saved, saved_before, currency, "warm")


def _money_tile(key: str, label: str, now: int, before: int, currency: str, tone: str) -> StatTile:
    return StatTile(
        key=key,
        label=label,
        value=money.shown(now, currency),
        exact=f"{money.exact(now)} {currency}",
        comparison=_change(now, before),
        tone=tone if now > 0 else "",
        wide=True,
    )


def _change(now: int, before: int) -> str:
    """Compare with the period before; nothing is said where that had nothing."""
    if not before:
        return ""
    change = round((now / before - 1) * 100)
    if change == 0:
        return "as before"
    if change > 999:
        return f"▲ {now / before:.0f} ×"
    return f"{'▲' if change > 0 else '▼'} {abs(change)} %"
