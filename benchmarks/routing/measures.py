"""What one run shows, simulated or live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from benchmarks.routing.simulator import Request

#: A good answer begins and goes on this fast, seconds.
GOOD_FIRST_TOKEN_SECONDS = 1.0
GOOD_TOKEN_SECONDS = 0.05


class Engine(Protocol):
    """What one engine did."""

    @property
    def computed_prompt_tokens(self) -> int: ...

    @property
    def busy_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """One run, or the mean of several. Times to the first token in seconds, shares from 0 to 1."""

    p50: float
    p90: float
    p99: float
    #: Requests answered fast enough.
    good: float
    #: Prompt tokens taken from an engine's cache.
    hit: float
    #: Prompt tokens that the busiest engine computed, as a multiple of the mean.
    skew: float
    #: Jain's index of the same: 1 if all engines computed the same, 1 / engines if one computed everything.
    jain: float
    #: Turns after the first that ran where the turn before ran; None if there are none.
    stay: float | None
    #: Share of the engines' time in which they computed.
    busy: float


def measure(requests: Sequence[Request], engines: Sequence[Engine]) -> Measures:
    """Return what a run shows."""
    times = sorted(each.ttft for each in requests)
    computed = [engine.computed_prompt_tokens for engine in engines]
    ends = max(each.ended_at for each in requests)
    return Measures(
        p50=percentile(times, 50),
        p90=percentile(times, 90),
        p99=percentile(times, 99),
        good=fmean(_is_good(each) for each in requests),
        hit=sum(each.cached_tokens for each in requests) / sum(each.turn.prompt_tokens for each in requests),
        skew=max(computed) / max(1.0, fmean(computed)),
        jain=_jain(computed),
        stay=_stay(requests),
        busy=fmean(engine.busy_seconds for engine in engines) / ends,
    )


def mean(runs: Sequence[Measures]) -> Measures:
    """Return the mean of runs that differ in their seed."""
    stays = [each.stay for each in runs if each.stay is not None]
    return Measures(
        p50=fmean(each.p50 for each in runs),
        p90=fmean(each.p90 for each in runs),
        p99=fmean(each.p99 for each in runs),
        good=fmean(each.good for each in runs),
        hit=fmean(each.hit for each in runs),
        skew=fmean(each.skew for each in runs),
        jain=fmean(each.jain for each in runs),
        stay=fmean(stays) if stays else None,
        busy=fmean(each.busy for each in runs),
    )


def ideal_hit(requests: Sequence[Request], block_size: int) -> float:
    """Return the share of prompt tokens that one cache without end would have had."""
    known: set[int] = set()
    found = total = 0
    for request in requests:
        turn = request.turn
        total += turn.prompt_tokens
        for block in turn.blocks[: (turn.prompt_tokens - 1) // block_size]:
            if block not in known:
                break
            found += block_size
        known.update(turn.blocks)
    return found / total


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of ordered values."""
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]


def _jain(work: Sequence[int]) -> float:
    squares = sum(each * each for each in work)
    return sum(work) ** 2 / (len(work) * squares) if squares else 1.0


def _is_good(request: Request) -> bool:
    seconds = (request.ended_at - request.first_token_at) / max(1, request.turn.output_tokens - 1)
    return request.ttft <= GOOD_FIRST_TOKEN_SECONDS and seconds <= GOOD_TOKEN_SECONDS


def _stay(requests: Sequence[Request]) -> float | None:
    replicas: dict[int, int] = {}
    stayed = []
    for request in requests:
        key = id(request.conversation)
        if request.number:
            stayed.append(replicas[key] == request.replica)
        replicas[key] = request.replica
    return fmean(stayed) if stayed else None
