"""The data of each chart: its series, the table below it, and its CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from django.utils.translation import gettext_noop as _

from billing.ledger.latency_buckets import Latency
from billing.ledger.rollups import Sums
from billing.reports.usage import Point
from portal.formats import money
from portal.formats.numbers import count, milliseconds, per_second, percent
from portal.reporting.periods import Period
from portal.reporting.stat_tiles import answered_without_engine, prediction_hit_rate, prefix_hit_rate, tokens_in

Unit = Literal["count", "percent", "money", "seconds", "rate"]
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
    kind: Literal["stack", "area", "lines"]
    unit: Unit
    series: tuple[Series, ...]
    times: tuple[datetime, ...]
    period: Period
    sign: str = "$"
    #: The list of the requests that it is made of, without a period; empty: there is none.
    requests: str = ""

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
            "requests": self.requests,
            "series": [
                {"label": one.label, "tone": one.tone, "values": one.values, "total": one.total} for one in self.series
            ],
        }

    @property
    def rows(self) -> list[tuple[datetime, tuple[str, ...], str]]:
        """The rows of the table below the chart, newest first: when, cells, and the address of its requests."""
        columns = zip(*(one.cells for one in self.series), strict=True)
        return list(zip(self.times, columns, map(self._link, range(len(self.times))), strict=True))[::-1]

    def _link(self, number: int) -> str:
        if not self.requests:
            return ""
        end = self.times[number + 1] if number + 1 < len(self.times) else self.period.end
        step = replace(self.period, start=self.times[number], end=end, preset=None, month=None)
        return f"{self.requests}?{step.query}"


def usage_charts(
    points: Sequence[Point], total: Sums, period: Period, currency: str, requests: str = ""
) -> tuple[Chart, ...]:
    """Return the charts of usage. ``points`` cover the whole period, one for each step, oldest first.

    ``requests`` is the address of the list of the requests that they sum.
    """
    chart = partial(Chart, times=_times(points), period=period, requests=requests)
    sign = money.sign_of(currency)
    counts = _count_series(points, total)
    amounts = _money_series(points, total, currency)
    return (
        chart(
            key="requests",
            title=_("Requests"),
            kind="stack",
            unit="count",
            series=(
                counts(_("Errors"), "bad", lambda sums: sums.errors),
                counts(_("By an engine"), "grey", _engine_requests),
                counts(_("By prediction cache"), "ember", answered_without_engine),
            ),
        ),
        chart(
            key="money",
            title=_("Money"),
            kind="stack",
            unit="money",
            sign=sign,
            series=(
                amounts(_("Billed"), "grey", lambda sums: sums.amount_pico),
                amounts(_("Saved by prediction cache"), "ember", lambda sums: sums.saved_prediction_pico),
                amounts(_("Saved by prefix cache"), "soft", lambda sums: sums.saved_prefix_pico),
            ),
        ),
        _hit_rates(points, total, period),
        chart(
            key="tokens",
            title=_("Tokens"),
            kind="stack",
            unit="count",
            series=(
                counts(_("Uncached prompt"), "grey", lambda sums: sums.prompt_tokens),
                counts(_("Cached prompt"), "soft", lambda sums: sums.cached_prompt_tokens),
                counts(_("Completion"), "ember", lambda sums: sums.completion_tokens),
            ),
        ),
    )


def speed_charts(
    points: Sequence[Point], latencies: Mapping[datetime, Latency], total: Sums, period: Period
) -> tuple[Chart, ...]:
    """Return the charts of throughput and of the time to the first token. ``points`` are those of ``period.moments``.

    ``latencies`` are by moment; one without requests is a gap.
    """
    chart = partial(Chart, times=_times(points), period=period, kind="lines")
    lengths = [_seconds(points, number, period) for number in range(len(points))]
    whole = sum(lengths)
    return (
        chart(
            key="throughput",
            title=_("Tokens per second"),
            unit="rate",
            series=(
                _per_second(_("Prompt"), "grey", tokens_in, points, lengths, per_second(tokens_in(total), whole)),
                _per_second(
                    _("Completion"),
                    "ember",
                    lambda sums: sums.completion_tokens,
                    points,
                    lengths,
                    per_second(total.completion_tokens, whole),
                ),
            ),
        ),
        chart(
            key="ttft",
            title=_("Time to the first token"),
            unit="seconds",
            series=tuple(
                _percentile(name, tone, [latencies.get(point.starts_at) for point in points])
                for name, tone in _PERCENTILES
            ),
        ),
    )


#: Percentiles, the highest first, so that its line is drawn below the others.
_PERCENTILES: tuple[tuple[str, Tone], ...] = (("p99", "faint"), ("p95", "soft"), ("p50", "ember"))


def _seconds(points: Sequence[Point], number: int, period: Period) -> float:
    """Return how long a step of a chart lasts; the last ends with the period."""
    end = points[number + 1].starts_at if number + 1 < len(points) else period.end
    return (end - points[number].starts_at).total_seconds()


def _per_second(
    label: str,
    tone: Tone,
    of: Callable[[Sums], int],
    points: Sequence[Point],
    lengths: Sequence[float],
    total: str,
) -> Series:
    rates = [of(point.sums) / seconds for point, seconds in zip(points, lengths, strict=True)]
    cells = tuple(per_second(of(point.sums), seconds) for point, seconds in zip(points, lengths, strict=True))
    return Series(label=label, tone=tone, values=tuple(rates), total=total, cells=cells)


def _percentile(name: str, tone: Tone, latencies: Sequence[Latency | None]) -> Series:
    times = [None if each is None else getattr(each.ttft, f"{name}_ms") for each in latencies]
    return Series(
        label=name,
        tone=tone,
        values=tuple(None if ms is None else ms / 1000 for ms in times),
        total="",
        cells=tuple(map(milliseconds, times)),
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
            title=_("Prediction cache"),
            kind="stack",
            unit="count",
            series=(
                counts(_("Bypassed"), "faint", lambda sums: sums.bypassed_requests),
                counts(_("Misses"), "grey", _misses),
                counts(_("Coalesced"), "soft", lambda sums: sums.coalesced_requests),
                counts(_("Hits"), "ember", lambda sums: sums.prediction_hits),
            ),
        ),
        chart(
            key="saved",
            title=_("Saved"),
            kind="stack",
            unit="money",
            sign=money.sign_of(currency),
            series=(
                amounts(_("By prediction cache"), "ember", lambda sums: sums.saved_prediction_pico),
                amounts(_("By prefix cache"), "soft", lambda sums: sums.saved_prefix_pico),
            ),
        ),
        chart(
            key="engine-seconds",
            title=_("Engine time avoided by prediction"),
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
        title=_("Hit rates"),
        kind="area",
        unit="percent",
        series=(
            rates(_("Prediction cache, of requests"), "ember", prediction_hit_rate),
            rates(_("Prefix cache, of prompt tokens"), "grey", prefix_hit_rate),
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
        label=_("Engine time"),
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
