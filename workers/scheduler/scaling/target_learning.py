"""Learn how many tokens in flight one replica should have from the rates that were measured: no database, no clock.

A window measures one load and the rate of tokens at it. Windows of like loads are one point of a curve. The target is
the lowest load at which the rate is close to the highest one: more load than that only makes requests wait longer. The
rules, with an example, are in ``docs/operations/scaling.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec

#: Long enough for several scrapes of the engines' counters, which are 2 s old on average.
WINDOW_SECONDS = 20.0
#: Two points of a curve are at least this factor apart in load.
SPACING = math.sqrt(2)
#: A point counts once it has this many windows, and the latest windows weigh one in this many.
TRUSTED_WINDOWS, REMEMBERED_WINDOWS = 3, 20
#: A point that was not measured for this long no longer counts: the requests have changed.
LASTS_SECONDS = 7 * 86_400.0
#: A load is enough if its rate is this share of the highest one.
CLOSE = 0.9
#: The target moves by no more than this factor at once, no sooner than this after the last move, and not at all for
#: less than this share.
STEP, PAUSE_SECONDS, HYSTERESIS = 1.25, 60.0, 0.1
LEAST_TOKENS, MOST_TOKENS = 128, 2**20


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at loads close to ``tokens`` in flight for one replica; ``at`` in seconds of the epoch.

    ``rate``: tokens that it computed in a second, of prompts and of completions. ``ttft_seconds`` is None where no
    stream began.
    """

    tokens: float
    rate: float
    ttft_seconds: float | None = None
    windows: int = 1
    at: float

    @property
    def place(self) -> int:
        """Return the place of its load on a logarithmic scale, which all windows of the point share."""
        return round(math.log(self.tokens, SPACING))


Curve = tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a target. ``cache_tokens``: the tokens that the replica's KV cache holds; None if unknown."""

    ttft_seconds: float | None = None
    cache_tokens: int | None = None

    @property
    def most_tokens(self) -> int:
        """Return the largest target."""
        return max(LEAST_TOKENS, min(MOST_TOKENS, self.cache_tokens or MOST_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The load that a curve calls for, and why. None: it says nothing yet."""

    tokens: int | None
    reason: str


def with_window(curve: Iterable[Point], window: Point) -> Curve:
    """Return the curve after one more window, in order of load, without points that are too old."""
    kept = {point.place: point for point in curve if window.at - point.at < LASTS_SECONDS}
    before = kept.get(window.place)
    kept[window.place] = window if before is None else _merged(before, window)
    return tuple(kept[place] for place in sorted(kept))


def lesson(curve: Iterable[Point], present: int, limits: Limits) -> Lesson:
    """Return what the curve says about the target, which is ``present`` now."""
    points = [point for point in curve if point.windows >= TRUSTED_WINDOWS]
    if not points:
        return Lesson(tokens=None, reason="no load was measured often enough yet")
    highest = max(points, key=lambda point: point.rate)
    enough = next(point for point in points if point.rate >= CLOSE * highest.rate)
    in_time = _in_time(points, limits.ttft_seconds)
    if len(in_time) < len(points):
        late = points[len(in_time)]
        if not in_time or enough.tokens >= late.tokens:
            tokens = in_time[-1].tokens if in_time else late.tokens / SPACING
            return _bounded(tokens, limits, f"at {_load(late)} TTFT was {late.ttft_seconds:.2f} s")
    if enough is not points[-1]:
        more = f"more load adds little: {_rate(highest)} at {highest.tokens:,.0f}"
        return _bounded(enough.tokens, limits, f"{_rate(enough)} at {_load(enough)}, and {more}")
    rising = f"{_rate(enough)} at {_load(enough)}, the highest load measured, and the rate still rises"
    if enough.tokens * SPACING < present:
        return Lesson(tokens=None, reason=rising)
    return _bounded(max(present, enough.tokens * SPACING), limits, rising)


def moved(present: int, wanted: int) -> int:
    """Return the target after one move from ``present`` to what is wanted."""
    if abs(wanted - present) <= HYSTERESIS * present:
        return present
    return round(min(present * STEP, max(present / STEP, wanted)))


def _merged(before: Point, window: Point) -> Point:
    """Return the point with a window more: the mean of the first ones, later ones with equal weights."""
    windows = min(before.windows + 1, REMEMBERED_WINDOWS)

    def mean(old: float, new: float) -> float:
        return old + (new - old) / windows

    ttft = window.ttft_seconds if before.ttft_seconds is None else before.ttft_seconds
    if before.ttft_seconds is not None and window.ttft_seconds is not None:
        ttft = mean(before.ttft_seconds, window.ttft_seconds)
    tokens = mean(before.tokens, window.tokens)
    return Point(tokens=tokens, rate=mean(before.rate, window.rate), ttft_seconds=ttft, windows=windows, at=window.at)


def _in_time(points: Sequence[Point], objective: float | None) -> list[Point]:
    """Return the points below the first one at which the first token was late; all of them without an objective."""
    if objective is None:
        return list(points)
    return list(takewhile(lambda point: point.ttft_seconds is None or point.ttft_seconds <= objective, points))


def _bounded(tokens: float, limits: Limits, reason: str) -> Lesson:
    if tokens > limits.most_tokens:
        return Lesson(tokens=limits.most_tokens, reason=f"{reason}; {limits.most_tokens:,} tokens are the most")
    return Lesson(tokens=max(LEAST_TOKENS, round(tokens)), reason=reason)


def _load(point: Point) -> str:
    return f"{point.tokens:,.0f} tokens in flight"


def _rate(point: Point) -> str:
    return f"{point.rate:,.0f} tokens/s" if point.rate >= 10 else f"{point.rate:.1f} tokens/s"
