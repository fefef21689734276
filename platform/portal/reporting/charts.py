"""The data of each chart: its series, the table below it, and its CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

from billing.ledger.rollups import Sums
from billing.reports.usage import Point
from portal.formats import money
from portal.formats.numbers import count, milliseconds, percent
from portal.reporting.periods import Period
from portal.reporting.stat_tiles import answered_without_engine, prediction_hit_rate, prefix_hit_rate

Unit = Literal["count", "percent", "money", "seconds"]
Tone = Literal["ember", "soft", "grey", "faint", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line or one layer of bars. ``values`` are in the chart's unit; None is a gap."""

    label: str
    tone: Tone
    values: tuple[float | None, ...]
    #: The whole period's value, for the legend.
    total: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart."""

    key: str
    title: str
    kind: Literal["stack", "area"]
    unit: Unit
    series: tuple[Series, ...]
    times: tuple[datetime, ...]
    period: Period
    sign: str = "$"

    @property
    def script_id(self) -> str:
        """The id of the page's JSON block with the chart's data."""
        return f"chart-{self.key}"

    @property
    def document(self) -> dict[str, Any]:
        """What ``charts.js`` reads: times in Unix seconds, money in units of the currency."""
        return {
            "kind": self.kind,
            "unit": self.unit,
            "sign": self.sign,
            "times": [int(moment.timestamp()) for moment in self.times],
            "from": int(min(self.period.start, *self.times[:1]).timestamp()),
            "to": int(self.period.end.timestamp()),
            "step": int(self.period.step.total_seconds()),
            "series": [
                {"label": one.label, "tone": one.tone, "values": one.values, "total": one.total} for one in self.series
            ],
        }

    @property
    def rows(self) -> list[tuple[datetime, tuple[str, ...]]]:
        """The rows of the table below the chart, newest first."""
        columns = zip(*(one.cells for one in self.series), strict=True)
        return list(zip(self.times, columns, strict=True))[::-1]


def usage_charts(points: Sequence[Point], total: Sums, period: Period, currency: str) -> tuple[Chart, ...]:
    """Return the charts of usage. ``points`` cover the whole period, one for each step, oldest first."""
    chart = partial(Chart, times=_times(points), period=period)
    sign = money.sign_of(currency)
    counts = _count_series(points, total)
    amounts = _money_series(points, total, currency)
    return (
        chart(
            key="requests",
            title="Requests",
            kind="stack",
            unit="count",
            series=(
                counts("Errors", "bad", lambda sums: sums.errors),
                counts("By an engine", "grey", _engine_requests),
                counts("By prediction cache", "ember", answered_without_engine),
            ),
        ),
        chart(
            key="money",
            title="Money",
            kind="stack",
            unit="money",
            sign=sign,
            series=(
                amounts("Billed", "grey", lambda sums: sums.amount_pico),
                amounts("Saved by prediction cache", "ember", lambda sums: sums.saved_prediction_pico),
                amounts("Saved by prefix cache", "soft", lambda sums: sums.saved_prefix_pico),
            ),
        ),
        _hit_rates(points, total, period),
        chart(
            key="tokens",
            title="Tokens",
            kind="stack",
            unit="count",
            series=(
                counts("Uncached prompt", "grey", lambda sums: sums.prompt_tokens),
                counts("Cached prompt", "soft", lambda sums: sums.cached_prompt_tokens),
                counts("Completion", "ember", lambda sums: sums.completion_tokens),
            ),
        ),
    )


def savings_charts(points: Sequence[Point], total: Sums, period: Period, currency: str) -> tuple[Chart, ...]:
    """Return the charts of what both caches saved. ``points`` as in :func:`usage_charts`."""
    chart = partial(Chart, times=_times(points), period=period)
    counts = _count_series(points, total)
    amounts = _money_series(points, total, currency)
    return (
        _hit_rates(points, total, period),
        chart(
            key="answers",
            title="Prediction cache",
            kind="stack",
            unit="count",
            series=(
                counts("Bypassed", "faint", lambda sums: sums.bypassed_requests),
                counts("Misses", "grey", _misses),
                counts("Coalesced", "soft", lambda sums: sums.coalesced_requests),
                counts("Hits", "ember", lambda sums: sums.prediction_hits),
            ),
        ),
        chart(
            key="saved",
            title="Saved",
            kind="stack",
            unit="money",
            sign=money.sign_of(currency),
            series=(
                amounts("By prediction cache", "ember", lambda sums: sums.saved_prediction_pico),
                amounts("By prefix cache", "soft", lambda sums: sums.saved_prefix_pico),
            ),
        ),
        chart(
            key="engine-seconds",
            title="Engine time avoided by prediction",
            kind="stack",
            unit="seconds",
            series=(_engine_time(points, total),),
        ),
    )


CSV_HEADER = (
    "starts_at",
    "requests",
    "errors",
    "prediction_hits",
    "coalesced_requests",
    "bypassed_requests",
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "tokens_avoided",
    "engine_seconds_avoided",
    "billed",
    "saved_by_prediction",
    "saved_by_prefix",
    "refused_requests",
)


def csv_rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Return the rows of the CSV: whole tokens, and money with twelve decimals."""
    return [
        (
            point.starts_at.isoformat(),
            str(point.sums.requests),
            str(point.sums.errors),
            str(point.sums.prediction_hits),
            str(point.sums.coalesced_requests),
            str(point.sums.bypassed_requests),
            str(point.sums.prompt_tokens),
            str(point.sums.cached_prompt_tokens),
            str(point.sums.completion_tokens),
            str(point.sums.avoided_tokens),
            f"{point.sums.avoided_engine_ms / 1000:.3f}",
            money.exact(point.sums.amount_pico),
            money.exact(point.sums.saved_prediction_pico),
            money.exact(point.sums.saved_prefix_pico),
            str(point.sums.refused_requests),
        )
        for point in points
    ]


def _hit_rates(points: Sequence[Point], total: Sums, period: Period) -> Chart:
    rates = _rate_series(points, total)
    return Chart(
        key="hit-rates",
        title="Hit rates",
        kind="area",
        unit="percent",
        series=(
            rates("Prediction cache, of requests", "ember", prediction_hit_rate),
            rates("Prefix cache, of prompt tokens", "grey", prefix_hit_rate),
        ),
        times=_times(points),
        period=period,
    )


def _times(points: Sequence[Point]) -> tuple[datetime, ...]:
    return tuple(point.starts_at for point in points)


def _engine_requests(sums: Sums) -> int:
    """Return the requests that an engine answered without error."""
    return max(0, sums.requests - answered_without_engine(sums) - sums.errors)


def _misses(sums: Sums) -> int:
    """Return the requests whose answer was looked up and not found."""
    return sums.requests - sums.bypassed_requests - answered_without_engine(sums)


def _engine_time(points: Sequence[Point], total: Sums) -> Series:
    spans = [point.sums.avoided_engine_ms for point in points]
    return Series(
        label="Engine time",
        tone="ember",
        values=tuple(span / 1000 for span in spans),
        total=milliseconds(total.avoided_engine_ms),
        cells=tuple(map(milliseconds, spans)),
    )


_SeriesFactory = Callable[[str, Tone, Callable[[Sums], Any]], Series]


def _count_series(points: Sequence[Point], total: Sums) -> _SeriesFactory:
    def series(label: str, tone: Tone, of: Callable[[Sums], Any]) -> Series:
        values = tuple(of(point.sums) for point in points)
        return Series(label=label, tone=tone, values=values, total=count(of(total)), cells=tuple(map(count, values)))

    return series


def _money_series(points: Sequence[Point], total: Sums, currency: str) -> _SeriesFactory:
    def series(label: str, tone: Tone, of: Callable[[Sums], Any]) -> Series:
        amounts = [of(point.sums) for point in points]
        return Series(
            label=label,
            tone=tone,
            values=tuple(float(amount) / money.PICO for amount in amounts),
            total=money.shown(of(total), currency),
            cells=tuple(money.shown(amount, currency) for amount in amounts),
        )

    return series


def _rate_series(points: Sequence[Point], total: Sums) -> _SeriesFactory:
    def series(label: str, tone: Tone, of: Callable[[Sums], Any]) -> Series:
        shares = [of(point.sums) for point in points]
        return Series(
            label=label,
            tone=tone,
            values=tuple(None if share is None else share * 100 for share in shares),
            total=percent(of(total)),
            cells=tuple(map(percent, shares)),
        )

    return series
