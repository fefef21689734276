"""The tiles at the top of a page: one number each, with its unit and its change against the previous period."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from billing.ledger.latency_buckets import Latency, Percentiles
from billing.ledger.rollups import Sums
from portal.formats import money
from portal.formats.numbers import compact, count, milliseconds, per_second, percent

#: What each number means, shown when the pointer is over its label.
MEANINGS = {
    "requests": _("Requests that were admitted in this period."),
    "errors": _("Requests that the platform failed to answer. Refusals and clients that disconnect are not errors."),
    "refused": _("Requests refused for a reason that the client can change: the body, the model, a limit or a budget."),
    "tokens-in": _("Prompt tokens sent to engines, cached ones included."),
    "tokens-out": _("Completion tokens that engines generated."),
    "prediction-rate": _("Share of requests answered from the prediction cache or by a running identical request."),
    "prefix-rate": _("Share of the prompt tokens sent to engines that were in their prefix cache."),
    "billed": _("What these requests cost, each at the price valid when it was admitted."),
    "saved-prediction": _("What hits and coalesced requests would have cost from an engine, less what they did cost."),
    "saved-prefix": _("What cached prompt tokens would have cost uncached, less what they did cost."),
    "request-rate": _("Admitted requests per second, on average over the period so far."),
    "token-rate": _("Prompt tokens sent to engines, cached ones included, and completion tokens that they generated."),
    "ttft": _("From a request's arrival to its first token: half took at most p50, 95 and 99 % at most p95 and p99."),
    "tpot": _("Time per output token of streams after the first: half took at most p50, 95 and 99 % at most p95, p99."),
    "hits": _("Requests answered from the prediction cache."),
    "coalesced": _("Requests that shared the answer of a running identical request."),
    "bypassed": _("Requests that were not looked up in the prediction cache. The reasons are listed below."),
    "tokens-avoided": _("Prompt and completion tokens that hits and coalesced requests did not need an engine for."),
    "engine-time": _("How long engines had worked on the answers that hits and coalesced requests reused."),
    "warm-in": _("Prompt tokens that were in an engine's prefix cache."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatTile:
    """One number. ``exact`` is shown on hover where ``value`` is rounded."""

    key: str
    label: str
    value: str
    unit: str = ""
    comparison: str = ""
    exact: str = ""
    #: Takes two columns where there is room.
    wide: bool = False
    #: ``warm`` for savings, ``alarm`` for problems, else empty.
    tone: str = ""
    link: str = ""

    @property
    def meaning(self) -> str:
        """The explanation shown on hover over the label."""
        return MEANINGS[self.key]


def tokens_in(sums: Sums) -> int:
    """Return all prompt tokens sent to engines, cached ones included."""
    return sums.prompt_tokens + sums.cached_prompt_tokens


def prediction_hit_rate(sums: Sums) -> float | None:
    """Return the share of requests that were hits or coalesced; None without requests."""
    return answered_without_engine(sums) / sums.requests if sums.requests else None


def answered_without_engine(sums: Sums) -> int:
    """Return the number of hits and coalesced requests, which needed no engine call of their own."""
    return sums.prediction_hits + sums.coalesced_requests


def prefix_hit_rate(sums: Sums) -> float | None:
    """Return the share of prompt tokens that were in a prefix cache; None without prompt tokens."""
    total = tokens_in(sums)
    return sums.cached_prompt_tokens / total if total else None


def error_rate(sums: Sums) -> float | None:
    """Return the share of requests that the platform failed; None without requests."""
    return sums.errors / sums.requests if sums.requests else None


def usage_tiles(now: Sums, before: Sums, *, currency: str, requests_link: str) -> tuple[StatTile, ...]:
    """Return the tiles of a period's usage, compared with the previous period. ``requests_link`` lists its requests."""
    return (
        _count_tile("requests", _("Requests"), now.requests, before.requests),
        StatTile(
            key="errors",
            label=_("Errors"),
            value=count(now.errors),
            unit=f"· {percent(error_rate(now))}" if now.requests else "",
            comparison=_change(now.errors, before.errors),
            tone="alarm" if now.errors else "",
            link=f"{requests_link}&errors=platform" if now.errors else "",
        ),
        StatTile(
            key="refused",
            label=_("Refused"),
            value=compact(now.refused_requests),
            exact=count(now.refused_requests),
            comparison=_change(now.refused_requests, before.refused_requests),
            link=f"{requests_link}&errors=client" if now.refused_requests else "",
        ),
        _count_tile("tokens-in", _("Prompt tokens"), tokens_in(now), tokens_in(before)),
        _count_tile("tokens-out", _("Completion tokens"), now.completion_tokens, before.completion_tokens),
        _rate_tile("prediction-rate", _("Prediction hit rate"), _("of requests"), prediction_hit_rate, now, before),
        _rate_tile("prefix-rate", _("Prefix hit rate"), _("of prompt tokens"), prefix_hit_rate, now, before),
        replace(_money_tile("billed", _("Billed"), now.amount_pico, before.amount_pico, currency, ""), wide=False),
        _prediction_saving_tile(now, before, currency),
        _money_tile(
            "saved-prefix",
            _("Saved by prefix cache"),
            now.saved_prefix_pico,
            before.saved_prefix_pico,
            currency,
            "warm",
        ),
    )


def speed_tiles(now: Speed, before: Speed) -> tuple[StatTile, ...]:
    """Return the tiles of throughput and latency, compared with the previous period."""
    return (
        StatTile(
            key="request-rate",
            label=_("Requests per second"),
            value=per_second(now.sums.requests, now.seconds),
            comparison=_rate_change(now, before, lambda sums: sums.requests),
        ),
        StatTile(
            key="token-rate",
            label=_("Tokens per second"),
            value=per_second(tokens_in(now.sums), now.seconds),
            unit=_("in"),
            comparison=" · ".join(
                filter(
                    None,
                    (
                        gettext("%(rate)s out") % {"rate": per_second(now.sums.completion_tokens, now.seconds)},
                        _rate_change(now, before, lambda sums: tokens_in(sums) + sums.completion_tokens),
                    ),
                )
            ),
        ),
        _latency_tile("ttft", _("Time to the first token"), now.latency.ttft, before.latency.ttft),
        _latency_tile("tpot", _("Time per output token"), now.latency.tpot, before.latency.tpot),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a period of so many seconds did, and how fast."""

    sums: Sums
    latency: Latency
    seconds: float


def _rate_change(now: Speed, before: Speed, of: Callable[[Sums], int]) -> str:
    """Return the change of a rate: the periods may differ in length, because this one may not be over."""
    if now.seconds <= 0 or before.seconds <= 0:
        return ""
    return _change(of(now.sums) / now.seconds, of(before.sums) / before.seconds)


def _latency_tile(key: str, label: str, now: Percentiles, before: Percentiles) -> StatTile:
    return StatTile(
        key=key,
        label=label,
        value=milliseconds(now.p50_ms),
        unit=f"p50 · p95 {milliseconds(now.p95_ms)} · p99 {milliseconds(now.p99_ms)}" if now.requests else "",
        comparison=_change(now.p50_ms or 0, before.p50_ms or 0) if now.requests else "",
        exact=gettext("of %(requests)s requests; to within 4.9 %%") % {"requests": count(now.requests)}
        if now.requests
        else "",
        wide=True,
    )


def savings_tiles(now: Sums, before: Sums, *, currency: str) -> tuple[StatTile, ...]:
    """Return the tiles of what both caches saved in a period, compared with the previous period."""
    return (
        _prediction_saving_tile(now, before, currency),
        _rate_tile("prediction-rate", _("Prediction hit rate"), _("of requests"), prediction_hit_rate, now, before),
        _count_tile("hits", _("Hits"), now.prediction_hits, before.prediction_hits),
        _count_tile("coalesced", _("Coalesced"), now.coalesced_requests, before.coalesced_requests),
        _count_tile("bypassed", _("Bypassed"), now.bypassed_requests, before.bypassed_requests),
        _count_tile("tokens-avoided", _("Tokens avoided"), now.avoided_tokens, before.avoided_tokens),
        StatTile(
            key="engine-time",
            label=_("Engine time avoided"),
            value=milliseconds(now.avoided_engine_ms),
            comparison=_change(now.avoided_engine_ms, before.avoided_engine_ms),
        ),
        _money_tile(
            "saved-prefix",
            _("Saved by prefix cache"),
            now.saved_prefix_pico,
            before.saved_prefix_pico,
            currency,
            "warm",
        ),
        _rate_tile("prefix-rate", _("Prefix hit rate"), _("of prompt tokens"), prefix_hit_rate, now, before),
        _count_tile("warm-in", _("Cached prompt tokens"), now.cached_prompt_tokens, before.cached_prompt_tokens),
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
        comparison = gettext("unchanged") if points == 0 else f"{'▲' if points > 0 else '▼'} {abs(points):.1f} pts"
    return StatTile(
        key=key, label=label, value=percent(current), comparison=" · ".join(filter(None, (gettext(unit), comparison)))
    )


def _prediction_saving_tile(now: Sums, before: Sums, currency: str) -> StatTile:
    saved, saved_before = now.saved_prediction_pico, before.saved_prediction_pico
    return _money_tile("saved-prediction", _("Saved by prediction cache"), saved, saved_before, currency, "warm")


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


def _change(now: float, before: float) -> str:
    """Return the change against the previous period; empty where that was zero."""
    if not before:
        return ""
    change = round((now / before - 1) * 100)
    if change == 0:
        return gettext("unchanged")
    if change > 999:
        return f"▲ {now / before:.0f} ×"
    return f"{'▲' if change > 0 else '▼'} {abs(change)} %"
