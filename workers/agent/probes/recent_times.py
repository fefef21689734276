"""How fast an engine answered in the last minute, from its own counts. Pure: no clock, no network, no database."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: The length of the window, and the least time between two samples in it.
WINDOW_SECONDS = 60.0
SAMPLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What an engine has counted since its start: first tokens, the intervals after them, and tokens of prompts."""

    first_tokens: float = 0.0
    first_token_seconds: float = 0.0
    intervals: float = 0.0
    interval_seconds: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Means of the window; None where nothing was counted in it."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    prefix_hit_share: float | None = None


@dataclass(slots=True)
class RecentTimes:
    """The counts of one engine process over the last minute."""

    _samples: deque[tuple[float, Totals]] = field(default_factory=deque)
    _last: Totals = field(default_factory=Totals)

    def add(self, now: float, totals: Totals) -> None:
        """Add what the engine has counted by ``now``, in seconds of a clock that only grows."""
        samples = self._samples
        self._last = totals
        if not samples or now - samples[-1][0] >= SAMPLE_SECONDS:
            samples.append((now, totals))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()

    def times(self) -> Times:
        """Return the means between the oldest and the newest counts."""
        first, last = (self._samples[0][1] if self._samples else self._last), self._last
        return Times(
            ttft_seconds=_mean(
                last.first_token_seconds - first.first_token_seconds, last.first_tokens - first.first_tokens
            ),
            tpot_seconds=_mean(last.interval_seconds - first.interval_seconds, last.intervals - first.intervals),
            prefix_hit_share=_mean(last.cached_tokens - first.cached_tokens, last.prompt_tokens - first.prompt_tokens),
        )


def _mean(total: float, count: float) -> float | None:
    return round(total / count, 6) if count > 0 and total >= 0 else None
